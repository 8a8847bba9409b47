"""`gradwatch health`: says how a run is, and tells a job script by its exit code."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final

import typer
from rich.table import Table
from rich.text import Text

from gradwatch_server.cli.client import get, run_path
from gradwatch_server.cli.options import DEFAULT_URL, AsJson, Url
from gradwatch_server.cli.rendering import coloured, plain, short, show_table
from gradwatch_server.cli.words import ranks_by_state
from gradwatch_wire.health import Status
from gradwatch_wire.names import Point

EXIT_UNHEALTHY: Final = 3

POINTS: Final[dict[str, str]] = {
    Point.BACKWARD: "the end of the backward pass, before clipping",
    Point.COLLECT: "the call of collect(), as they are there",
    Point.OPTIMIZER_STEP: "the optimizer's step, after clipping",
}
"""Points of the training step at which the gradients were read, in words."""


def health(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    fail_on: Annotated[
        Status | None,
        typer.Option(help="Exit 3 if the status is this one or a worse one, in this order."),
    ] = None,
) -> None:
    """Say how a run is and where it went wrong."""
    report = get(url, run_path(run, "health"))
    if as_json:
        print(json.dumps(report))
    else:
        show_table(_table(report))
    if fail_on is not None and Status(report["status"]).is_at_least(fail_on):
        raise typer.Exit(EXIT_UNHEALTHY)


def _table(report: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in _lines(report):
        table.add_row(Text(name), value if isinstance(value, Text) else plain(value))
    for alert in report["alerts"]["items"]:
        what = f" {alert['rule']}: {alert['message']}"
        table.add_row(plain(alert["state"]), coloured(alert["severity"]) + plain(what))
    return table


def _pace(report: dict[str, Any]) -> str:
    """Return how often is measured, and when that was last if it was not at the newest step."""
    last = report["window"]["last_step"]
    later = last is not None and last != report["step"]
    return f"{report['pace']}; last at step {last}" if later else str(report["pace"])


def _lines(report: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return name and value of each line, but for the alerts that stand below them."""
    score, norm, layers = report["score"], report["gradient_norm"], report["layers"]
    said_below = {alert["message"] for alert in report["alerts"]["items"]}
    return [
        ("run", f"{report['run']} (attempt {report['attempt']})"),
        ("phase", report["phase"]),
        ("status", coloured(report["status"])),
        *(("", reason) for reason in report["reasons"] if reason not in said_below),
        ("step", report["step"]),
        ("loss", _given(report["loss"])),
        ("learning rate", _given(report["lr"])),
        ("step time", _given(report["step_time_s"], " s")),
        ("score", _listed(score, "last", "mean", "min")),
        ("gradient norm", _listed(norm, "last", "p50", "max")),
        ("gradients of", _point(report["point"])),
        *([("measured", _pace(report))] if report["pace"] else ()),
        ("layers", ", ".join(f"{count} {name}" for name, count in layers.items())),
        ("ranks", ranks_by_state(report["ranks"])),
        ("records", ", ".join(f"{count} {name}" for name, count in report["records"].items())),
        ("first bad", _first_bad(report["first_bad"])),
    ]


def _given(number: float | str | None, unit: str = "") -> str:
    """Show a number of the last step, which a training may give or not."""
    return "not given" if number is None else f"{short(number)}{unit}"


def _point(point: str | None) -> str:
    return "not known, or ranks differ" if point is None else POINTS.get(point, point)


def _listed(numbers: dict[str, Any], *keys: str) -> str:
    return ", ".join(f"{key} {short(numbers[key])}" for key in keys)


def _first_bad(first_bad: dict[str, Any] | None) -> str:
    if first_bad is None:
        return "nothing non-finite"
    unknown = "not known"
    rank = unknown if first_bad["rank"] is None else first_bad["rank"]
    module, last_good = first_bad.get("module"), first_bad["last_good_step"]
    when = f"at step {first_bad['step']}"
    if last_good not in {None, first_bad["step"] - 1}:
        when = f"between steps {last_good} and {first_bad['step']}"
    if module:
        return f"non-finite output of {module} on rank {rank} {when}"
    where = first_bad["layer"] or _before_gradients(first_bad) or _one_of(first_bad) or unknown
    return f"{first_bad['kind']} in {where} on rank {rank} {when}"


def _one_of(first_bad: dict[str, Any]) -> str | None:
    """Name the layers where it cannot be known which of them was first."""
    names, count = first_bad.get("layers", ()), first_bad.get("num_layers", 0)
    if not names:
        return None
    more = ", …" if count > len(names) else ""
    return f"one of {count} layers ({', '.join(names)}{more})"


def _before_gradients(first_bad: dict[str, Any]) -> str | None:
    first = first_bad.get("first_gradient")
    if not first and not first_bad.get("bad_loss"):
        return None
    maybe = "" if first_bad.get("bad_loss") else ", maybe"
    back = f" (gradients from {first} back)" if first else ""
    return f"the loss or the forward pass{maybe}{back}"
