"""Snapshot of a run that `top` shows."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from gradwatch_server.cli.async_client import AsyncClient
from gradwatch_server.cli.client import query_of, run_path
from gradwatch_server.cli.top.layers import gone_wrong

MAX_LAYERS: Final = 16
"""As many layers as one request of curves may name."""

STEPS: Final = 64
"""Of the newest steps, and of points in a curve of a run or a layer."""

RUN_COLUMNS: Final = ("norm", "loss")


async def read_run(client: AsyncClient, run: str, text: str) -> dict[str, Any]:
    """Return a run: its `health`, its `curves`, and its worst `layers`.

    A layer has what `GET /runs/{run}/frames/{step}` says of it, the rules that say that it has
    `gone_wrong`, and the `curve` of its L2 norm.

    Args:
        client: Asks.
        run: Name of the run.
        text: What the names of layers have in them; without it the worst are chosen.

    Raises:
        GradwatchError: If the aggregator cannot be reached, or answers with an error.
    """
    columns = [("column", name) for name in RUN_COLUMNS]
    path = run_path(run, "series") + query_of(*columns, ("last", STEPS), ("points", STEPS))
    report, series = await asyncio.gather(client.get(run_path(run, "health")), client.get(path))
    curves = {own["column"]: _curve_of(own) for own in series["series"]}
    step = series["last_step"]
    layers = [] if step is None else await _read_layers(client, run, step, report, text)
    return {"health": report, "curves": curves, "layers": layers}


async def _read_layers(
    client: AsyncClient, run: str, step: int, report: dict[str, Any], text: str
) -> list[dict[str, Any]]:
    wrong = gone_wrong(report)
    found: dict[str, dict[str, Any]] = {}
    if text:
        known = run_path(run, "layers") + query_of(("q", text), ("limit", MAX_LAYERS))
        names = [own["name"] for own in (await client.get(known))["layers"]]
    else:
        found = await _at_step(client, run, step, ("worst", MAX_LAYERS))
        names = list({**wrong, **found})[:MAX_LAYERS]
    if others := [("layer", name) for name in names if name not in found]:
        found |= await _at_step(client, run, step, *others)
    curves = await _read_curves(client, run, names)
    return [
        found[name] | {"gone_wrong": wrong.get(name, []), "curve": curves[name]} for name in names
    ]


async def _at_step(
    client: AsyncClient, run: str, step: int, *asked: tuple[str, object]
) -> dict[str, dict[str, Any]]:
    """Return layers as they stand at a step, by their names."""
    answer = await client.get(run_path(run, f"frames/{step}") + query_of(*asked))
    return {own["name"]: own for own in answer["layers"]}


async def _read_curves(client: AsyncClient, run: str, names: list[str]) -> dict[str, list[Any]]:
    if not names:
        return {}
    asked = (("column", "l2"), ("last", STEPS), ("points", STEPS))
    path = run_path(run, "series") + query_of(*(("layer", name) for name in names), *asked)
    return {own["layer"]: _curve_of(own) for own in (await client.get(path))["series"]}


def _curve_of(series: dict[str, Any]) -> list[float | str | None]:
    """Return one value for each bucket; what was not finite hides none that was, but is seen."""
    nothing = [0] * len(series["max"])
    return [
        "NaN" if nan else "Infinity" if inf else most
        for most, nan, inf in zip(
            series["max"], series.get("nan", nothing), series.get("inf", nothing), strict=True
        )
    ]
