"""A picture of layers and steps, one code for each cell."""

from __future__ import annotations

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
from gradwatch_server.api.routes.layers import layers_of
from gradwatch_server.api.routes.series import Epoch, Form, Last
from gradwatch_server.api.series_range import Range, Step, check_cells, find_range
from gradwatch_server.api.state import Api, View
from gradwatch_server.core.arrays import FloatArray, IndexArray
from gradwatch_server.series import codes
from gradwatch_server.series.buckets import Buckets
from gradwatch_server.series.columns import LAYER_COLUMNS, RUN_COLUMNS, RUN_TABLE
from gradwatch_server.series.layers import KnownLayers, module_of
from gradwatch_wire.columns import L2

router = APIRouter()

MAX_COLUMNS: Final = 1_024
DEFAULT_COLUMNS: Final = 512

Columns = Annotated[int, Query(ge=1, le=MAX_COLUMNS, description="Buckets of steps at most.")]
Fold = Annotated[
    str,
    Query(
        pattern="^(none|module|[1-9][0-9]{0,4})$",
        description="Rows put together: those of a module, or so many each; the worst cell wins.",
    ),
]
Pattern = Annotated[
    str | None, Query(max_length=500, description="Pattern of names of layers, as `h.7.*`.")
]
_COVERAGE, _SKIPPED = RUN_COLUMNS.index("coverage"), RUN_COLUMNS.index("skipped")


# No coroutine, so that it runs in a thread: reading the store may wait for the disk.
@router.get("/runs/{run}/heatmap", summary="Layers and steps as a picture", response_class=Json)
def heatmap(
    view: View,
    api: Api,
    request: Request,
    column: str = "l2",
    from_: Annotated[Step, Query(alias="from")] = None,
    to: Step = None,
    last: Last = None,
    columns: Columns = DEFAULT_COLUMNS,
    after: Step = None,
    fold: Fold = "none",
    layer: Pattern = None,
    epoch: Epoch = None,
    format_: Annotated[Form, Query(alias="format")] = "json",
) -> Response:
    tag = tag_of(api, view)
    if has_tag(request, tag):
        return unchanged(tag)
    if column not in LAYER_COLUMNS:
        allowed = ", ".join(LAYER_COLUMNS)
        raise HTTPException(422, f"query column: no column {column[:80]!a}; there are {allowed}")
    if from_ is to is last is None:
        last = columns
    as_json = format_ == "json"
    with api.history(view) as history:
        own = find_range(view, api, history, epoch, from_, to, after, last)
        known = layers_of(view, history.layers)
        picture = _Picture(own, known, column, own.width(columns))
        places = _places(known, layer)
        rows = _rows(known, places, fold)
        advice = "ask for fewer columns, or fold=module, or format=safetensors"
        check_cells(len(rows.names) * picture.num_columns, as_json=as_json, advice=advice)
        check_cells(len(places) * picture.num_columns, as_json=False, advice="fewer columns")
        arrays = picture.arrays(places, rows)
    facts = own.numbers | {
        "column": column,
        "width": picture.width,
        "columns": columns,
        "fold": fold,
        "manifest": known.digest,
        "codes": codes.NAMES,
        "lowest": codes.LOWEST,
        "highest": codes.HIGHEST,
        "num_judged": picture.num_judged,
    }
    if after is None or fold != "none":
        facts["layers"] = rows.names
    if as_json:
        return tagged(Json(facts | _plain(arrays)), tag)
    return tagged(safetensors.SafeTensors(safetensors.encode(arrays, facts)), tag)


def _places(known: KnownLayers, pattern: str | None) -> IndexArray:
    """Return the places of the layers that fit a pattern, of all without.

    Raises:
        HTTPException: 404 if none does.
    """
    if pattern is None:
        return np.arange(len(known), dtype=np.int64)
    places = known.matching(pattern)
    if not len(places):
        raise HTTPException(404, f"no layer fits {pattern[:120]!a}; /layers has the names")
    return places


class _Rows:
    """The rows of a picture: their names, and which of them each layer goes to."""

    def __init__(self, names: list[str], of_layer: IndexArray | None) -> None:
        self.names, self.of_layer = names, of_layer


def _rows(known: KnownLayers, places: IndexArray, fold: str) -> _Rows:
    names = [known.names[place] for place in places.tolist()]
    if fold == "none":
        return _Rows(names, None)
    if fold == "module":
        keys = [module_of(name) for name in names]
    else:
        keys = [str(at // int(fold)) for at in range(len(names))]
    rows = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    of_layer = np.array([rows[key] for key in keys], dtype=np.int64)
    if fold == "module":
        return _Rows(list(rows), of_layer)
    firsts = [names[int(np.argmax(of_layer == row))] for row in range(len(rows))]
    return _Rows(firsts, of_layer)


class _Picture:
    """Reads one picture."""

    def __init__(self, own: Range, known: KnownLayers, column: str, width: int) -> None:
        self._own, self._known = own, known
        self._column = LAYER_COLUMNS[column]
        self._reader = BucketReader(own, width)
        self.num_judged = 0
        """Rows of which the rules know what is usual."""

    @property
    def width(self) -> int:
        """Steps of a column."""
        return self._reader.width

    @property
    def num_columns(self) -> int:
        """How many there are."""
        return self._reader.num_buckets

    def arrays(self, places: IndexArray, rows: _Rows) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of the answer."""
        run = self._reader.read(RUN_TABLE, np.array([_COVERAGE, _SKIPPED], dtype=np.int64))
        cells = self._reader.read(self._column.stored, places)
        if self._column.power:
            cells = cells.scaled(self._column.factor(self._known.sizes[places]))
        baseline = codes.usual(self._usual(cells, places))
        found = codes.cells(cells, run.counts[0, :, 0] > 0, baseline)
        if rows.of_layer is not None:
            found, baseline = codes.fold(found, baseline, rows.of_layer)
        arrays: dict[str, npt.NDArray[Any]] = {
            "step": steps_as_array(run.steps),
            "coverage": run.stats[0, :, 0].astype(np.float32),
            "skipped": (run.finite - run.counts[3])[:, 1].clip(0, 65_535).astype(np.uint16),
            "code": found,
        }
        if self._own.after is None:
            arrays["baseline"] = baseline
        return arrays

    def _usual(self, cells: Buckets, places: IndexArray) -> FloatArray:
        """Return (places,) what is usual: what the rules go by, else the median of the row.

        The rules know modules; each of the layers of one has the share of it that its median has.
        """
        medians = codes.medians(cells)
        levels = self._own.levels if self._column.stored == L2 else None
        if levels is None:
            return medians
        factor = self._column.factor(self._known.sizes[places])
        judged = levels.of_layers(places, medians / factor) * factor
        self.num_judged = int((~np.isnan(judged)).sum())
        return np.where(np.isnan(judged), medians, judged)


def _plain(arrays: dict[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Return the picture as plain data: magnitudes within 0.15 %, and words for what is none."""
    plain = {name: arrays[name].tolist() for name in ("step", "skipped")}
    plain["coverage"] = _numbers(arrays["coverage"])
    words = {code: name for name, code in codes.NAMES.items() if code < codes.FIRST}
    values = codes.decode(arrays["code"]).astype(object)
    for code, word in words.items():
        if code != codes.ZERO:
            values[arrays["code"] == code] = word
    plain["value"] = values.tolist()
    if "baseline" in arrays:
        plain["baseline"] = _numbers(codes.decode(arrays["baseline"]))
    return plain


def _numbers(values: npt.NDArray[Any]) -> list[float | None]:
    return [None if own != own else own for own in values.tolist()]  # noqa: PLR0124 - NaN
