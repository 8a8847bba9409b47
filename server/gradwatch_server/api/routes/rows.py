"""Stored numbers of a run, step by step, for readers of all of it, such as an export."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final, Literal

import numpy as np
from fastapi import APIRouter, HTTPException, Query
from starlette.responses import Response

from gradwatch_server.api import safetensors
from gradwatch_server.api.kept_pages import MAX_STEPS, KeptPages
from gradwatch_server.api.routes.layers import layers_of
from gradwatch_server.api.series_range import Epoch, StepRange, find_range
from gradwatch_server.api.state import Api, ApiState, View
from gradwatch_server.core.arrays import IndexArray
from gradwatch_server.core.frames.rows import FRAME_COLUMNS
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.curves.columns import RUN_COLUMNS
from gradwatch_server.curves.layers import KnownLayers
from gradwatch_wire.limits import MAX_STEP

router = APIRouter()

_ALL: Final = "*"

NO_LAYER: Final = "-"

Column = Annotated[
    list[Literal[FRAME_COLUMNS]] | None,  # type: ignore[valid-type]  # the names are a constant
    Query(max_length=len(FRAME_COLUMNS), description="Columns of the layers; all by default."),
]
Layer = Annotated[
    str, Query(max_length=600, description=f"Pattern of names of layers; `{NO_LAYER}` for none.")
]
From = Annotated[int, Query(ge=0, le=MAX_STEP, alias="from", description="First step.")]
To = Annotated[int, Query(ge=0, le=MAX_STEP, description="Last step.")]
Limit = Annotated[int, Query(ge=1, le=MAX_STEPS, description="Largest number of steps.")]


@router.get(
    "/runs/{run}/rows",
    summary="All numbers that are kept, step by step, in pages",
    response_class=safetensors.SafeTensors,
)
async def rows(
    view: View,
    api: Api,
    epoch: Epoch = None,
    from_: From = 0,
    to: To = MAX_STEP,
    layer: Layer = _ALL,
    column: Column = None,
    limit: Limit = MAX_STEPS,
) -> Response:
    if from_ > to:
        raise HTTPException(422, f"query from: a step up to `to`, {to}, got {from_}")
    columns = list(dict.fromkeys(column or FRAME_COLUMNS))
    asked = StepRange(epoch, from_)
    return await api.curve_reads.run(lambda: _answer(view, api, asked, to, layer, columns, limit))


def _answer(
    view: RunView,
    api: ApiState,
    asked: StepRange,
    to: int,
    pattern: str,
    columns: list[str],
    limit: int,
) -> Response:
    with api.history(view) as history:
        range_ = find_range(view, api, history, asked)
        range_ = replace(range_, last=min(range_.last, to))  # also where nothing is kept up to it
        known = layers_of(view, history.layers)
        places = _places(known, pattern)
        if pattern != NO_LAYER and len(known) and not len(places):
            raise HTTPException(422, f"query layer: no layer of run {view.name} fits {pattern!a}")
        facts = range_.numbers | {
            "epochs": [[one.epoch, one.first, one.last] for one in history.spans()],
            "run_columns": RUN_COLUMNS,
            "layer_columns": columns,
        }
        arrays: dict[str, Any] = {"place": places}
        page: dict[str, Any] = {"width": 1, "next": None}
        if range_.first <= range_.last:
            page_arrays, page = KeptPages(range_, columns, places).page(limit)
            arrays |= page_arrays
    return safetensors.SafeTensors(safetensors.encode(arrays, facts | page))


def _places(known: KnownLayers, pattern: str) -> IndexArray:
    if pattern == NO_LAYER:
        return np.zeros(0, dtype=np.int64)
    if pattern == _ALL:
        return np.arange(len(known), dtype=np.int64)
    return known.matching(pattern)
