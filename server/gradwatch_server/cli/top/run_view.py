"""One run: how it is and why, its curves, its worst layers, its alerts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widgets import Static

from gradwatch_server.cli.async_client import AsyncClient
from gradwatch_server.cli.client import query_of, run_path
from gradwatch_server.cli.rendering import short
from gradwatch_server.cli.sparkline import sparkline
from gradwatch_server.cli.top.cells import name_cell, number_cell
from gradwatch_server.cli.words import marked, sentences, status_text
from gradwatch_server.core.printable import printable

MAX_LAYERS: Final = 16
"""As many layers as one request of curves may name."""

STEPS: Final = 64
"""Of the newest steps, and of points in a curve of a run or a layer."""

RUN_COLUMNS: Final = ("norm", "loss")

MAX_NAME: Final = 48
MIN_NAME: Final = 12
MIN_CURVE: Final = 16

WIDE: Final = 72
"""Characters of a terminal from which on layers have curves, and alerts columns."""

NUMBERS_WIDTH: Final = 24
"""Characters of two numbers with the space around them."""

GAP: Final = 2
"""Spaces between columns."""

LAYER_COLUMNS: Final = ("layer", "gone wrong", "norm now", "usual", "newest steps")

ALERT_COLUMNS: Final = ("alert", "rule", "since step", "known by", "message")


def gone_wrong(report: dict[str, Any]) -> dict[str, list[str]]:
    """Return the layers in which something is wrong by a run's health, to the rules that say so.

    The origins of critical alerts come first, then those of others, then the worst of the last
    step, then what else alerts name.
    """
    alerts = [alert for alert in report["alerts"]["items"] if alert["state"] == "firing"]
    alerts.sort(key=lambda alert: alert["severity"] != "critical")
    told = [(alert["origin"]["layer"], alert["rule"]) for alert in alerts]
    told += [(layer["name"], layer["why"]) for layer in report["worst_layers"]]
    told += [(name, alert["rule"]) for alert in alerts for name in alert["layers"]]
    rules_of: dict[str, list[str]] = {}
    for name, rule in told:
        rules = rules_of.setdefault(name, []) if name is not None else []
        if rule not in rules:
            rules.append(rule)
    return rules_of


async def read_run(client: AsyncClient, run: str, text: str) -> dict[str, Any]:
    """Return a run: its `health`, its `curves`, and its worst `layers`.

    A layer has what `GET /runs/{run}/frames/{step}` says of it, the rules that say that it has
    `gone_wrong`, and the `curve` of its L2 norm.

    Args:
        text: What the names of layers have in them; without it the worst are chosen.

    Raises:
        GradwatchError: If the aggregator cannot be reached, or answers with an error.
    """
    columns = [("column", name) for name in RUN_COLUMNS]
    path = run_path(run, "series") + query_of(*columns, ("last", STEPS), ("points", STEPS))
    # One after the other: of two at once, one that fails leaves the other to a closed client.
    report, series = await client.get(run_path(run, "health")), await client.get(path)
    curves = {each["column"]: _curve_of(each) for each in series["series"]}
    step = series["last_step"]
    layers = [] if step is None else await _read_layers(client, run, step, report, text)
    return {"health": report, "curves": curves, "layers": layers}


async def _read_layers(
    client: AsyncClient, run: str, step: int, report: dict[str, Any], text: str
) -> list[dict[str, Any]]:
    wrong = gone_wrong(report)
    layers: dict[str, dict[str, Any]] = {}
    if text:
        known = run_path(run, "layers") + query_of(("q", text), ("limit", MAX_LAYERS))
        names = [layer["name"] for layer in (await client.get(known))["layers"]]
    else:
        layers = await _at_step(client, run, step, ("worst", MAX_LAYERS))
        names = list({**wrong, **layers})[:MAX_LAYERS]
    if others := [("layer", name) for name in names if name not in layers]:
        layers |= await _at_step(client, run, step, *others)
    curves = await _read_curves(client, run, names)
    return [
        layers[name] | {"gone_wrong": wrong.get(name, []), "curve": curves[name]} for name in names
    ]


async def _at_step(
    client: AsyncClient, run: str, step: int, *asked: tuple[str, object]
) -> dict[str, dict[str, Any]]:
    """Return layers as they stand at a step, by their names."""
    answer = await client.get(run_path(run, f"frames/{step}") + query_of(*asked))
    return {layer["name"]: layer for layer in answer["layers"]}


async def _read_curves(client: AsyncClient, run: str, names: list[str]) -> dict[str, list[Any]]:
    if not names:
        return {}
    asked = (("column", "l2"), ("last", STEPS), ("points", STEPS))
    path = run_path(run, "series") + query_of(*(("layer", name) for name in names), *asked)
    return {each["layer"]: _curve_of(each) for each in (await client.get(path))["series"]}


def _curve_of(series: dict[str, Any]) -> list[float | str | None]:
    """Return one value for each bucket; what was not finite hides none that was, but is seen."""
    nothing = [0] * len(series["max"])
    return [
        "NaN" if nan else "Infinity" if inf else largest
        for largest, nan, inf in zip(
            series["max"], series.get("nan", nothing), series.get("inf", nothing), strict=True
        )
    ]


class RunScreen(VerticalScroll):
    """A run at one glance."""

    filter_hint = "names of layers that have this in them"

    def __init__(self) -> None:
        super().__init__()
        self._run = ""
        self._snapshot: dict[str, Any] = {}
        self._all = Static(markup=False)

    def compose(self) -> ComposeResult:
        yield self._all

    def open(self, run: str) -> None:
        """Show another run from now on."""
        self._run = run
        self._snapshot = {}
        self._all.update("asking how it is")

    async def read(self, client: AsyncClient, text: str) -> None:
        """Ask how it is, and its layers with a text in their names."""
        self._snapshot = await read_run(client, self._run, text)

    def draw(self, *, is_old: bool) -> str:
        if self._snapshot:
            parts = _parts(self._snapshot, self._all.size.width, is_old=is_old)
            self._all.update(Group(*parts))
        return f"run {printable(self._run)}"


def _parts(snapshot: dict[str, Any], width: int, *, is_old: bool) -> Iterator[Text | Table]:
    """Yield what is shown, from top to bottom, in so many characters."""
    report = snapshot["health"]
    yield status_text(report["status"], report["phase"], is_old=is_old)
    yield from _reasons(report)
    curves = [
        Text.assemble(f"{name}  ", sparkline(curve, min(STEPS, width - GAP - len(name))))
        for name, curve in snapshot["curves"].items()
        if any(value is not None for value in curve)
    ]
    parts: list[Text | Table] = [*curves, Text(), _layers(snapshot["layers"], width)]
    if width < WIDE:  # the layers first: such a terminal is seldom high
        parts = [_narrow_layers(snapshot["layers"], width), Text(), *curves]
    yield Text()
    yield from parts
    firing = [alert for alert in report["alerts"]["items"] if alert["state"] == "firing"]
    if firing:
        firing.sort(key=lambda alert: alert["severity"] != "critical")
        alerts = map(_alert, firing)
        yield Text()
        if width < WIDE:
            yield from (Text(" ").join((mark, message)) for mark, _, _, _, message in alerts)
        else:
            yield _table(ALERT_COLUMNS, alerts)
        yield from (
            Text(f"often behind it (heuristic): {printable(hint)}", style="dim")
            for hint in firing[0]["hints"][:1]
        )


def _reasons(report: dict[str, Any]) -> Iterator[Text]:
    """Yield why it is so, and the numbers that go with that."""
    yield from (Text(f"  {printable(reason)}") for reason in sentences(report))
    states = [rank["state"] for rank in report["ranks"]]
    facts = {
        "step": report["step"],
        "score": report["score"]["last"],
        "norm": report["gradient_norm"]["last"],
        "loss": report["loss"],
        "lr": report["lr"],
        "s/step": report["step_time_s"],
        "layers": report["layers"]["total"],
        "ranks": f"{states.count('alive')} of {report['world']} alive",
        "attempt": report["attempt"],
    }
    known = (f"{name} {_shown(value)}" for name, value in facts.items() if value is not None)
    yield Text(printable("  ".join(known)), style="dim")
    if (bad := report["first_bad"]) is not None:
        rank = "" if bad["rank"] is None else f", rank {bad['rank']}"
        layer = f" in {printable(bad['layer'])}" if bad["layer"] else ""
        when = f"at step {bad['step']:,}"
        if bad["last_good_step"] not in {None, bad["step"] - 1}:
            when = f"between steps {bad['last_good_step']:,} and {bad['step']:,}"
        yield Text(f"first NaN or Inf {when}{rank}{layer}", style="dim")


def _shown(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return short(value) if isinstance(value, float) else str(value)


def _table(columns: Iterable[str], rows: Iterable[list[Text]]) -> Table:
    table = Table(*columns, box=None, padding=(0, GAP, 0, 0), header_style="bold")
    for row in rows:
        table.add_row(*row)
    return table


def _layers(layers: list[dict[str, Any]], width: int) -> Table:
    """Return the layers; their curves have the room that the other columns leave."""
    rows = [_layer(layer) for layer in layers]
    columns = zip(LAYER_COLUMNS, *rows, strict=False)
    beside = sum(GAP + max(cell_len(str(cell)) for cell in column) for column in columns)
    room = min(max(width - beside - GAP, MIN_CURVE), STEPS)
    curves = (sparkline(layer["curve"], room) for layer in layers)
    return _table(LAYER_COLUMNS, ([*row, curve] for row, curve in zip(rows, curves, strict=True)))


def _narrow_layers(layers: list[dict[str, Any]], width: int) -> Table:
    """Return the layers with their numbers alone; what has gone wrong in one colours its name."""
    limit = max(width - NUMBERS_WIDTH, MIN_NAME)
    rows = []
    for layer in layers:
        _, wrong, now, usual = _layer(layer)
        name = name_cell(layer["name"], limit)
        name.stylize(wrong.style if wrong.plain else "")
        rows.append([name, now, usual])
    return _table((LAYER_COLUMNS[0], *LAYER_COLUMNS[2:4]), rows)


def _layer(layer: dict[str, Any]) -> list[Text]:
    return [
        name_cell(layer["name"], MAX_NAME),
        Text(printable(", ".join(layer["gone_wrong"])), style="bold red"),
        number_cell(layer["l2"]),
        number_cell(layer["usual"]),
    ]


def _alert(alert: dict[str, Any]) -> list[Text]:
    by = alert["acknowledged"]["by"] if alert["acknowledged"] else "nobody yet"
    return [
        marked(alert["severity"]),
        Text(printable(alert["rule"])),
        Text(str(alert["first_step"]), justify="right"),
        Text(printable("silenced" if alert["silenced"] else by)),
        Text(printable(alert["message"])),
    ]
