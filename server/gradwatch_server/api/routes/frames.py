"""One step as it was: the numbers of the run, and of its worst layers or of some."""

from __future__ import annotations

from typing import Annotated, Any, Final

import numpy as np
from fastapi import APIRouter, HTTPException, Path, Query, Request
from starlette.responses import Response

from gradwatch_server.api.etags import has_tag, tag_of, tagged, unchanged
from gradwatch_server.api.problems import Json
from gradwatch_server.api.questions import show_layouts
from gradwatch_server.api.rank_parts import RankParts
from gradwatch_server.api.rank_rows import Rank, rank_of
from gradwatch_server.api.rank_stretch import ClosedStep
from gradwatch_server.api.routes.layers import layers_of
from gradwatch_server.api.series_range import Epoch, Range, StepRange, find_range
from gradwatch_server.api.state import Api, View
from gradwatch_server.api.subjects import place_of
from gradwatch_server.core.alerting.alert import isotime
from gradwatch_server.core.arrays import IndexArray
from gradwatch_server.core.frames.rows import FRAME_COLUMNS
from gradwatch_server.curves.columns import RUN_COLUMNS, RUN_TABLE
from gradwatch_server.curves.facts import SeriesQuery
from gradwatch_server.curves.items import SPREAD_TABLE, USUAL_TABLE
from gradwatch_server.curves.layers import KnownLayers
from gradwatch_server.curves.reader import all_run_columns
from gradwatch_server.curves.rows import Rows
from gradwatch_wire.columns import L2
from gradwatch_wire.limits import MAX_STEP

router = APIRouter()

MAX_NAMED: Final = 64

Step = Annotated[int, Path(ge=0, le=MAX_STEP)]
Worst = Annotated[int, Query(ge=0, le=1_000, description="Number of the worst layers.")]
Layer = Annotated[
    list[str] | None,
    Query(max_length=MAX_NAMED, description="Name of a layer, in place of the worst."),
]


@router.get(
    "/runs/{run}/frames/{step}", summary="One step, with its worst layers", response_class=Json
)
async def frame(
    view: View,
    api: Api,
    request: Request,
    step: Step,
    worst: Worst = 20,
    layer: Layer = None,
    rank: Rank = None,
    epoch: Epoch = None,
) -> Response:
    tag = tag_of(api, view)
    if has_tag(request, tag):
        return unchanged(tag)
    if rank is not None:
        rank_of(view, rank)
    layouts = await api.command(show_layouts(view.name, view.attempt)) or {}

    def read() -> Response:
        with api.history(view) as history:
            range_ = find_range(view, api, history, StepRange(epoch))
            answer = _describe_step(range_, layers_of(view, history.layers), step, worst, layer)
            closed = ClosedStep.find(range_, step)
        if closed is not None:
            parts = RankParts.find(view, layouts, api.engine.records, closed)
            _add_ranks(answer, parts, rank)
        return tagged(Json(answer), tag)

    return await api.curve_reads.run(read)


def _add_ranks(answer: dict[str, Any], parts: RankParts, rank: int | None) -> None:
    """Add what each rank sent, of one if one is asked for."""
    answer["ranks"] = [each for each in parts.describe() if rank in (None, each["rank"])]
    layers = answer["layers"]
    of_layers = parts.of_layers([each["index"] for each in layers])
    for layer, ranks in zip(layers, of_layers, strict=True):
        layer["ranks"] = ranks and [each for each in ranks if rank in (None, each["rank"])]


def _describe_step(
    range_: Range, known: KnownLayers, step: int, worst: int, layer: list[str] | None
) -> dict[str, Any]:
    run = _row(range_, RUN_TABLE, all_run_columns(), step)
    if run is None:
        raise HTTPException(404, _missing(range_, step))
    places = np.arange(len(known), dtype=np.int64)
    l2 = _row(range_, L2, places, step) or _unknown(run, len(known))
    usual = _row(range_, USUAL_TABLE, places, step) or _unknown(run, len(known))
    if layer is not None:
        places = np.array([place_of(name, known) for name in layer], dtype=np.int64)
    else:
        places = _worst(l2, usual)[:worst]
    columns = {name: _row(range_, name, places, step) for name in (*FRAME_COLUMNS, SPREAD_TABLE)}
    values = [_number(run, at) for at in range(len(RUN_COLUMNS))]
    numbers = dict[str, Any](zip(RUN_COLUMNS, values, strict=True))
    numbers["step_time_s"] = numbers.pop("step_time")
    numbers["skipped"] = bool(run.skipped[0])
    return {
        **{name: range_.numbers[name] for name in ("run", "attempt", "boot", "epoch")},
        "step": step,
        "received_at": isotime(int(run.times_ns[0])),
        **numbers,
        "num_layers": int(l2.known.sum()),
        "num_nonfinite": int((l2.known & ~np.isfinite(l2.values)).sum()),
        "ranks": [],
        "layers": [
            _describe(known, place, at, columns, usual) for at, place in enumerate(places.tolist())
        ],
    }


def _row(range_: Range, table: str, items: IndexArray, step: int) -> Rows | None:
    epoch = range_.span.epoch if range_.span else 0
    return range_.history.row(SeriesQuery(epoch, table, items, step, step))


def _unknown(run: Rows, num_layers: int) -> Rows:
    values = np.full((1, num_layers), np.nan)
    return Rows(run.steps, run.times_ns, run.skipped, values, np.zeros((1, num_layers), np.bool_))


def _missing(range_: Range, step: int) -> str:
    """Say why there is no such step, and which are near."""
    if range_.span is None:
        return f"no step {step} of run {range_.view.name!a}; it has none yet"
    first, last = range_.span.first, range_.span.last
    if not first <= step <= last:
        return f"no step {step} of run {range_.view.name!a}; kept are {first} to {last}"
    finest = range_.history.finest(range_.span.epoch, step)
    if finest > 1:
        return f"step {step} is not kept by itself any more; /series has buckets of {finest} steps"
    return f"no record of step {step}; kept are steps from {first} to {last} that had one"


def _worst(l2: Rows, usual: Rows) -> IndexArray:
    """Return the places of the layers that are there, those farthest from usual first."""
    values, known = l2.values[0], l2.known[0]
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = abs(np.log2(values) - np.log2(usual.values[0]))
    distance = np.where(np.isnan(distance), 0.0, distance)
    distance = np.where(np.isfinite(values), distance, np.inf)
    order = np.argsort(-distance, kind="stable")
    worst: IndexArray = order[known[order]]
    return worst


def _describe(
    known: KnownLayers, place: int, at: int, columns: dict[str, Rows | None], usual: Rows
) -> dict[str, Any]:
    described: dict[str, Any] = {"index": int(place), "name": known.names[place]}
    for name, rows in columns.items():
        described[name] = None if rows is None else _number(rows, at)
    return described | {"usual": _number(usual, place)}


def _number(rows: Rows, at: int) -> float | None:
    return float(rows.values[0, at]) if rows.known[0, at] else None
