"""Curves of a run: of its numbers, and of its layers, groups, modules and blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gradwatch_server.api import safetensors
from gradwatch_server.api.bucket_reader import BucketReader
from gradwatch_server.api.curves import as_arrays, as_plain
from gradwatch_server.api.etags import has_tag, tag_of, tagged, unchanged
from gradwatch_server.api.problems import Json
from gradwatch_server.api.rank_rows import Selected, SelectedRank, check_columns, read_rank
from gradwatch_server.api.routes.layers import layers_of
from gradwatch_server.api.series_range import (
    MAX_NEWEST,
    Range,
    StepRange,
    Steps,
    check_cells,
    find_range,
)
from gradwatch_server.api.state import Api, ApiState, View
from gradwatch_server.api.subjects import SeriesRequest, SeriesTable
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.curves.columns import LAYER_COLUMNS, RUN_TABLE
from gradwatch_server.curves.layers import KnownLayers

router = APIRouter()

MAX_LAYERS: Final = 16
MAX_POINTS: Final = MAX_NEWEST
PER_BUCKET: Final = 9
"""Numbers of one bucket of one series, at most."""

Layer = Annotated[
    list[str] | None, Query(max_length=MAX_LAYERS, description="Name of a layer, up to 16 times.")
]
Group = Annotated[
    list[str] | None,
    Query(max_length=MAX_LAYERS, description="Name of a group, or `later/earlier`."),
]
Module = Annotated[
    list[str] | None, Query(max_length=MAX_LAYERS, description="Name of a module with activations.")
]
Block = Annotated[
    list[str] | None, Query(max_length=MAX_LAYERS, description="Name of a block with gains.")
]
Column = Annotated[
    list[str] | None,
    Query(
        max_length=16, description="Column of the run, or of the layers, groups, modules, blocks."
    ),
]
Points = Annotated[int, Query(ge=1, le=MAX_POINTS, description="Largest number of buckets.")]
Form = Annotated[
    Literal["json", "safetensors"], Query(alias="format", description="`json` or `safetensors`.")
]


@router.get("/runs/{run}/series", summary="Curves in buckets of steps", response_class=Json)
async def series(
    view: View,
    api: Api,
    request: Request,
    steps: Steps,
    rank: Selected,
    layer: Layer = None,
    group: Group = None,
    module: Module = None,
    block: Block = None,
    column: Column = None,
    points: Points = 1_000,
    format_: Form = "json",
) -> Response:
    tag = tag_of(api, view)
    if has_tag(request, tag):
        return unchanged(tag)
    names = {"layer": layer, "group": group, "module": module, "block": block}
    wanted = SeriesRequest(column or (), {name: given for name, given in names.items() if given})
    wanted.check()
    if rank is not None:
        check_columns(wanted.of_run, wanted.names)
    asked = _Request(wanted, steps, rank, points, format_ == "json")
    return await api.curve_reads.run(lambda: tagged(_answer(view, api, asked), tag))


@dataclass(frozen=True, slots=True)
class _Request:
    """Parameters of a request."""

    wanted: SeriesRequest
    steps: StepRange
    rank: SelectedRank | None
    points: int
    as_json: bool


def _answer(view: RunView, api: ApiState, asked: _Request) -> Response:
    wanted = asked.wanted
    with api.history(view) as history:
        range_ = find_range(view, api, history, asked.steps)
        known = layers_of(view, history.layers)
        tables = wanted.tables(known)
        reader = _reader(range_, known, api, asked, tables)
        num_series = len(wanted.of_run) + sum(len(each.subjects) for each in tables)
        cells = reader.num_buckets * num_series * PER_BUCKET
        check_cells(
            cells, as_json=asked.as_json, advice="ask for fewer points, or format=safetensors"
        )
        curves = reader.of_run(wanted.of_run)
        for each in tables:
            curves += reader.curves(each, known)
        frame = curves[0].buckets  # all are of the same steps
    facts = range_.numbers | reader.rank_facts | {"width": reader.width, "points": asked.points}
    if asked.as_json:
        return Json(facts | as_plain(curves, frame.steps, frame.times_ns))
    facts["series"] = [curve.label for curve in curves]
    arrays = as_arrays(curves, frame.steps, frame.times_ns)
    return safetensors.SafeTensors(safetensors.encode(arrays, facts))


def _reader(
    range_: Range, known: KnownLayers, api: ApiState, asked: _Request, tables: Sequence[SeriesTable]
) -> BucketReader:
    if asked.rank is None:
        names = {each.table for each in tables} | ({RUN_TABLE} if asked.wanted.of_run else set())
        return BucketReader(range_, range_.width(asked.points, names))
    columns = [LAYER_COLUMNS[each.column].stored for each in tables]
    range_, rows = read_rank(asked.rank, range_, len(known), columns, api.engine.records)
    return BucketReader(range_, range_.width(asked.points), rows)
