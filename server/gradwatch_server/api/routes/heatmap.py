"""A picture of layers and steps, one code for each cell."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

import numpy as np
import numpy.typing as npt
from fastapi import APIRouter, HTTPException, Query, Request
from starlette.responses import Response

from gradwatch_server.api import safetensors
from gradwatch_server.api.bucket_reader import BucketReader
from gradwatch_server.api.curves import steps_as_array
from gradwatch_server.api.etags import has_tag, tag_of, tagged, unchanged
from gradwatch_server.api.problems import Json
from gradwatch_server.api.rank_rows import Selected, SelectedRank, read_rank
from gradwatch_server.api.routes.layers import layers_of
from gradwatch_server.api.routes.series import Form
from gradwatch_server.api.series_range import Range, StepRange, Steps, check_cells, find_range
from gradwatch_server.api.state import Api, ApiState, View
from gradwatch_server.core.arrays import FloatArray, IndexArray
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.curves import codes
from gradwatch_server.curves.buckets import MEAN, Buckets
from gradwatch_server.curves.columns import LAYER_COLUMNS, RUN_COLUMNS, RUN_TABLE
from gradwatch_server.curves.items import SPREAD_TABLE, USUAL_TABLE
from gradwatch_server.curves.layers import KnownLayers
from gradwatch_wire.columns import L2

router = APIRouter()

MAX_COLUMNS: Final = 1_024
DEFAULT_COLUMNS: Final = 512

Columns = Annotated[
    int, Query(ge=1, le=MAX_COLUMNS, description="Largest number of buckets of steps.")
]
Pattern = Annotated[
    str | None, Query(max_length=500, description="Pattern of names of layers, as `h.7.*`.")
]
_COVERAGE, _SKIPPED = RUN_COLUMNS.index("coverage"), RUN_COLUMNS.index("skipped")


@dataclass(frozen=True, slots=True)
class _HeatmapRequest:
    """Parameters of a request."""

    steps: StepRange
    rank: SelectedRank | None
    column: str
    columns: int
    layer: str | None
    as_json: bool


@router.get(
    "/runs/{run}/heatmap", summary="Norms of layers by steps, as a picture", response_class=Json
)
async def heatmap(
    view: View,
    api: Api,
    request: Request,
    steps: Steps,
    rank: Selected,
    column: Annotated[str, Query(description="Column of the layers.")] = L2,
    columns: Columns = DEFAULT_COLUMNS,
    layer: Pattern = None,
    format_: Form = "json",
) -> Response:
    tag = tag_of(api, view)
    if has_tag(request, tag):
        return unchanged(tag)
    if column not in LAYER_COLUMNS:
        allowed = ", ".join(LAYER_COLUMNS)
        raise HTTPException(422, f"query column: no column {column[:80]!a}; there are {allowed}")
    if steps.is_all:
        steps = replace(steps, newest=columns)
    asked = _HeatmapRequest(steps, rank, column, columns, layer, format_ == "json")
    return await api.curve_reads.run(lambda: tagged(_answer(view, api, asked), tag))


def _answer(view: RunView, api: ApiState, asked: _HeatmapRequest) -> Response:
    with api.history(view) as history:
        range_ = find_range(view, api, history, asked.steps)
        known = layers_of(view, history.layers)
        picture = _Picture(range_, known, asked.column, _reader(range_, known, api, asked))
        places = _places(known, asked.layer)
        advice = "ask for fewer columns, or layer=PATTERN, or format=safetensors"
        num_cells = len(places) * picture.num_columns
        check_cells(num_cells, as_json=asked.as_json, advice=advice)
        arrays = picture.arrays(places)
    facts = range_.numbers | picture.facts() | {"columns": asked.columns}
    if asked.steps.after is None:
        facts["layers"] = [known.names[place] for place in places.tolist()]
    if asked.as_json:
        return Json(facts | _plain(arrays))
    return safetensors.SafeTensors(safetensors.encode(arrays, facts))


def _reader(
    range_: Range, known: KnownLayers, api: ApiState, asked: _HeatmapRequest
) -> BucketReader:
    if asked.rank is None:
        return BucketReader(range_, range_.width(asked.columns))
    columns = [LAYER_COLUMNS[asked.column].stored]
    range_, rows = read_rank(asked.rank, range_, len(known), columns, api.engine.records)
    return BucketReader(range_, range_.width(asked.columns), rows)


def _places(known: KnownLayers, pattern: str | None) -> IndexArray:
    """Return the places of the layers that fit a pattern, of all without."""
    if pattern is None:
        return np.arange(len(known), dtype=np.int64)
    places = known.matching(pattern)
    if not len(places):
        raise HTTPException(404, f"no layer fits {pattern[:120]!a}; /layers has the names")
    return places


class _Picture:
    """Reads one picture."""

    def __init__(
        self, range_: Range, known: KnownLayers, column: str, reader: BucketReader
    ) -> None:
        self._range, self._known, self._reader = range_, known, reader
        self._column = LAYER_COLUMNS[column]

    def facts(self) -> dict[str, Any]:
        """Return what the answer says of it beside the arrays."""
        return self._reader.rank_facts | {
            "column": self._column.name,
            "width": self._reader.width,
            "manifest": self._known.digest,
            "codes": codes.NAMES,
            "lowest": codes.LOWEST,
            "highest": codes.HIGHEST,
        }

    @property
    def num_columns(self) -> int:
        return self._reader.num_buckets

    def arrays(self, places: IndexArray) -> dict[str, npt.NDArray[Any]]:
        run = self._reader.read(RUN_TABLE, np.array([_COVERAGE, _SKIPPED], dtype=np.int64))
        cells = self._scaled(self._reader.read(self._column.stored, places), places)
        usual = codes.usual(self._usual(cells, places))
        cell_codes = codes.cells(cells, run.counts[0, :, 0] > 0, usual)
        return {
            "step": steps_as_array(run.steps),
            "coverage": run.stats[0, :, 0].astype(np.float32),
            "skipped": (run.finite - run.counts[3])[:, 1].clip(0, 65_535).astype(np.uint16),
            "code": cell_codes,
            "usual": usual,
            "spread": self._spread(places).astype(np.float32),
        }

    def _spread(self, places: IndexArray) -> FloatArray:
        """Return (places,) the spread of norms, its median over the steps; NaN if not known."""
        if self._column.stored != L2 or self._reader.rank_facts:
            return np.full(len(places), np.nan)
        return codes.medians(self._reader.read(SPREAD_TABLE, places))

    def _scaled(self, cells: Buckets, places: IndexArray) -> Buckets:
        if not self._column.power:
            return cells
        return cells.scaled(self._column.factor(self._known.sizes[places]))

    def _usual(self, cells: Buckets, places: IndexArray) -> FloatArray:
        """Return (columns, places) usual values: by the judge then, else the row's median."""
        if self._column.stored == L2 and not self._reader.rank_facts:
            usual = self._scaled(self._reader.read(USUAL_TABLE, places), places)
            judged: FloatArray = usual.stats[MEAN]
            return judged
        if self._range.after is not None:
            cells = self._scaled(self._reader.whole().read(self._column.stored, places), places)
        return np.broadcast_to(codes.medians(cells), (self.num_columns, len(places)))


def _plain(arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Return the picture as plain data: magnitudes within 0.15 %, and words for what is none."""
    plain = {name: arrays[name].tolist() for name in ("step", "skipped")}
    plain["coverage"] = _numbers(arrays["coverage"])
    plain["spread"] = _numbers(arrays["spread"])
    words = {code: name for name, code in codes.NAMES.items() if code < codes.FIRST}
    values = codes.decode(arrays["code"]).astype(object)
    for code, word in words.items():
        if code != codes.ZERO:
            values[arrays["code"] == code] = word
    plain["value"] = values.tolist()
    plain["usual"] = [_numbers(row) for row in codes.decode(arrays["usual"])]
    return plain


def _numbers(values: npt.NDArray[Any]) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]  # noqa: PLR0124 - NaN
