"""Curves of a run: of its numbers, and of its layers'."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import numpy as np
from fastapi import APIRouter, HTTPException, Query, Request
from starlette.responses import Response

from gradwatch_server.api import safetensors
from gradwatch_server.api.curves import Curve, as_arrays, as_plain
from gradwatch_server.api.etags import has_tag, tag_of, tagged, unchanged
from gradwatch_server.api.problems import Json
from gradwatch_server.api.routes.layers import layers_of
from gradwatch_server.api.series_range import Range, Step, check_cells, find_range
from gradwatch_server.api.state import Api, View
from gradwatch_server.series.buckets import Buckets
from gradwatch_server.series.columns import LAYER_COLUMNS, RUN_COLUMNS, RUN_TABLE, LayerColumn
from gradwatch_server.series.history import Wanted
from gradwatch_server.series.layers import KnownLayers
from gradwatch_wire.columns import L2

router = APIRouter()

MAX_LAYERS: Final = 16
MAX_POINTS: Final = 4_096
PER_BUCKET: Final = 9
"""Numbers of one bucket of one series, at most."""

Layer = Annotated[
    list[str] | None, Query(max_length=MAX_LAYERS, description="Names of layers, one each.")
]
Column = Annotated[
    list[str] | None,
    Query(max_length=16, description="What is wanted: of the run, or of each of the layers."),
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
    run_columns, layer_columns = _columns(column, has_layers=bool(layer))
    as_json = format_ == "json"
    with api.history(view) as history:
        own = find_range(view, api, history, epoch, from_, to, after, last)
        reader = _Reader(own, own.width(points))
        known = layers_of(view, history.layers)
        places = [place_of(name, known) for name in layer or ()]
        num_series = len(run_columns) + len(places) * len(layer_columns)
        cells = reader.num_buckets * num_series * PER_BUCKET
        check_cells(cells, as_json=as_json, advice="ask for fewer points, or format=safetensors")
        frame = reader.read(RUN_TABLE, [RUN_COLUMNS.index(name) for name in run_columns] or [0])
        curves = [Curve({"column": name}, frame, at) for at, name in enumerate(run_columns)]
        for wanted in layer_columns:
            curves += reader.curves(wanted, places, known)
    facts = own.numbers | {"width": reader.width, "x": x, "points": points}
    if as_json:
        return tagged(Json(facts | as_plain(curves, frame.steps, frame.times_ns)), tag)
    facts["series"] = [curve.label for curve in curves]
    arrays = as_arrays(curves, frame.steps, frame.times_ns)
    return tagged(safetensors.SafeTensors(safetensors.encode(arrays, facts)), tag)


class _Reader:
    """Reads buckets of one range without gaps."""

    def __init__(self, own: Range, width: int) -> None:
        self._own, self.width = own, width
        self._first, self._last = own.numbered(width)
        self.num_buckets = max(self._last - self._first + 1, 0)

    def read(self, table: str, items: list[int]) -> Buckets:
        """Return the buckets of some items of a table."""
        own, width = self._own, self.width
        epoch = own.span.epoch if own.span else 0
        steps = (self._first * width, (self._last + 1) * width - 1)
        wanted = Wanted(epoch, table, np.array(items, dtype=np.int64), *steps)
        return own.history.buckets(wanted, width).spread(self._first, self._last)

    def curves(self, wanted: LayerColumn, places: list[int], known: KnownLayers) -> list[Curve]:
        """Return a curve of each of some layers."""
        found = self.read(wanted.stored, places).scaled(wanted.factor(known.sizes[places]))
        return [
            Curve({"layer": known.names[place], "column": wanted.name}, found, at)
            for at, place in enumerate(places)
        ]


def _columns(given: list[str] | None, *, has_layers: bool) -> tuple[list[str], list[LayerColumn]]:
    """Return the columns of the run and those of layers that are asked for.

    Raises:
        HTTPException: 422 for one that there is not, or a layer's without a layer.
    """
    names = list(dict.fromkeys(given or ([L2] if has_layers else ["norm"])))
    for name in names:
        if name not in RUN_COLUMNS and name not in LAYER_COLUMNS:
            allowed = f"of the run {', '.join(RUN_COLUMNS)}; of layers {', '.join(LAYER_COLUMNS)}"
            raise HTTPException(422, f"query column: no column {name[:80]!a}; there are {allowed}")
        if name not in RUN_COLUMNS and not has_layers:
            raise HTTPException(422, f"query column: {name} is of a layer; add layer=NAME")
    of_run = [name for name in names if name in RUN_COLUMNS]
    of_layers = [LAYER_COLUMNS[name] for name in names if name in LAYER_COLUMNS]
    return of_run, of_layers


def place_of(name: str, known: KnownLayers) -> int:
    """Return the place of a layer.

    Raises:
        HTTPException: 404 with the names that are most like it.
    """
    place = known.places.get(name)
    if place is not None:
        return place
    near = ", ".join(ascii(own[:120]) for own in known.near(name))
    hint = f"the nearest names are {near}" if near else "/layers has the names"
    raise HTTPException(404, f"no layer {name[:120]!a}; {hint}")
