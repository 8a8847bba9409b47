"""`gradwatch layers`: lists the layers of a run, how they stand and what is wrong with them."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from gradwatch_server.cli.client import get, run_path
from gradwatch_server.cli.layer_rows import (
    gone_wrong,
    last_step_path,
    named_paths,
    worst_names,
    worst_path,
)
from gradwatch_server.cli.options import DEFAULT_URL, AsJson, Url
from gradwatch_server.cli.rendering import console, plain, short

MAX_LAYERS: Final = 1_000

Layer = dict[str, Any]


class Order(StrEnum):
    """By what layers come."""

    WORST = "worst"
    PLACE = "place"
    NAME = "name"
    SIZE = "size"


def layers(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
    sort: Annotated[
        Order,
        typer.Option(help="Those first that are worst, or by place in the model, name or size."),
    ] = Order.WORST,
    limit: Annotated[int, typer.Option(min=1, max=MAX_LAYERS, help="How many at most.")] = 50,
) -> None:
    """List the layers of a run as they stand at its last step, the worst first."""
    wrong = gone_wrong(get(url, run_path(run, "health")))
    known = get(url, run_path(run, "layers"))["layers"]
    step = get(url, last_step_path(run))["last_step"]
    rows = _measured(url, run, step, _chosen(url, run, step, sort, known, wrong, limit))
    for row in rows:
        row["gone_wrong"] = wrong.get(row["name"], [])
    if as_json:
        for row in rows:
            print(json.dumps(row))
    elif rows:
        console.print(_table(rows))
        if len(rows) < len(known):
            print(f"{len(rows)} of {len(known)} layers; --limit shows more")
    else:
        print("no layers yet")


def _chosen(
    url: str,
    run: str,
    step: int | None,
    sort: Order,
    known: list[Layer],
    wrong: dict[str, list[str]],
    limit: int,
) -> list[Layer]:
    """Return the layers that are asked for, in their order, as the aggregator describes them."""
    if sort is Order.NAME:
        known = sorted(known, key=lambda own: str(own["name"]))
    elif sort is Order.SIZE:
        known = sorted(known, key=lambda own: -int(own["numel"]))
    elif sort is Order.WORST and step is not None:
        worst = get(url, worst_path(run, step, limit))["layers"]
        by_name = {own["name"]: own for own in known}
        names = worst_names(wrong, [*worst, *known], limit)
        known = [by_name[name] for name in names if name in by_name]
    return known[:limit]


def _measured(url: str, run: str, step: int | None, chosen: list[Layer]) -> list[Layer]:
    """Add what was measured of layers at a step, and what was usual; nothing before the first."""
    found: dict[str, Layer] = {}
    if step is not None:
        for path in named_paths(run, step, [own["name"] for own in chosen]):
            found |= {own["name"]: own for own in get(url, path)["layers"]}
    empty = {"l2": None, "usual": None}
    return [own | {"step": step} | found.get(own["name"], empty) for own in chosen]


def _table(rows: list[Layer]) -> Table:
    table = Table("layer", "module", box=None)
    for name in ("elements", "norm", "usual"):
        table.add_column(name, justify="right")
    table.add_column("gone wrong")
    for row in rows:
        table.add_row(
            plain(row["name"]),
            plain(row["module"]),
            f"{row['numel']:,}",
            _number(row["l2"]),
            _number(row["usual"]),
            plain(", ".join(row["gone_wrong"])),
        )
    return table


def _number(value: float | str | None) -> str:
    return "-" if value is None else short(value)
