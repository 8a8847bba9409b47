"""Curves of a run: of its numbers, and of its layers, groups, modules and blocks."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gradwatch_server.api import safetensors
from gradwatch_server.api.bucket_reader import BucketReader
from gradwatch_server.api.curves import Curve, as_arrays, as_plain
from gradwatch_server.api.etags import has_tag, tag_of, tagged, unchanged
from gradwatch_server.api.problems import Json
from gradwatch_server.api.routes.layers import layers_of
from gradwatch_server.api.series_range import Step, check_cells, find_range
from gradwatch_server.api.state import Api, View
from gradwatch_server.api.subjects import Question

router = APIRouter()

MAX_LAYERS: Final = 16
MAX_POINTS: Final = 4_096
PER_BUCKET: Final = 9
"""Numbers of one bucket of one series, at most."""

Layer = Annotated[
    list[str] | None, Query(max_length=MAX_LAYERS, description="Names of layers, one each.")
]
Group = Annotated[
    list[str] | None,
    Query(max_length=MAX_LAYERS, description="Groups, or two of them as `later/earlier`."),
]
Module = Annotated[
    list[str] | None, Query(max_length=MAX_LAYERS, description="Modules with activations.")
]
Block = Annotated[list[str] | None, Query(max_length=MAX_LAYERS, description="Blocks with gains.")]
Column = Annotated[
    list[str] | None,
    Query(max_length=16, description="What is wanted: of the run, or of what else is named."),
]
Points = Annotated[int, Query(ge=1, le=MAX_POINTS, description="Buckets at most.")]
Last = Annotated[
    int | None, Query(ge=1, le=MAX_POINTS, description="So many of the newest steps with a record.")
]
Epoch = Annotated[
    int | None, Query(ge=0, lt=1 << 53, description="How often the steps had gone back.")
]
Form = Literal["json", "safetensors"]


# No coroutine, so that it runs in a thread: reading the store may wait for the disk.
@router.get("/runs/{run}/series", summary="Curves in buckets of steps", response_class=Json)
def series(
    view: View,
    api: Api,
    request: Request,
    layer: Layer = None,
    group: Group = None,
    module: Module = None,
    block: Block = None,
    column: Column = None,
    from_: Annotated[Step, Query(alias="from")] = None,
    to: Step = None,
    last: Last = None,
    points: Points = 1_000,
    after: Step = None,
    epoch: Epoch = None,
    x: Literal["step", "time"] = "step",
    format_: Annotated[Form, Query(alias="format")] = "json",
) -> Response:
    tag = tag_of(api, view)
    if has_tag(request, tag):
        return unchanged(tag)
    names = {"layer": layer, "group": group, "module": module, "block": block}
    wanted = Question(column or (), {own: given for own, given in names.items() if given})
    wanted.check()
    as_json = format_ == "json"
    with api.history(view) as history:
        own = find_range(view, api, history, epoch, from_, to, after, last)
        known = layers_of(view, history.layers)
        tables = wanted.tables(known)
        reader = BucketReader(own, own.width(points, {each.table for each in tables}))
        num_series = len(wanted.of_run) + sum(len(each.subjects) for each in tables)
        cells = reader.num_buckets * num_series * PER_BUCKET
        check_cells(cells, as_json=as_json, advice="ask for fewer points, or format=safetensors")
        frame = reader.run(wanted.of_run)
        curves = [Curve({"column": name}, frame, at) for at, name in enumerate(wanted.of_run)]
        for each in tables:
            curves += reader.curves(each, known)
    facts = own.numbers | {"width": reader.width, "x": x, "points": points}
    if as_json:
        return tagged(Json(facts | as_plain(curves, frame.steps, frame.times_ns)), tag)
    facts["series"] = [curve.label for curve in curves]
    arrays = as_arrays(curves, frame.steps, frame.times_ns)
    return tagged(safetensors.SafeTensors(safetensors.encode(arrays, facts)), tag)
