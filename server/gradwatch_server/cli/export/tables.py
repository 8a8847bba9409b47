"""Pages and alerts as tables: one row per step, per layer and step, or per alert."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gradwatch_server.cli.export.about import RUN_NAMES, ExportSelection, Layer
from gradwatch_server.cli.export.format import Format
from gradwatch_server.cli.export.page import RUN, Page, TableNumbers
from gradwatch_server.core.arrays import BoolArray, IndexArray
from gradwatch_server.curves.buckets import COUNTS, STATS
from gradwatch_wire.columns import COUNT_COLUMNS

STEPS: Final = "steps"
LAYERS: Final = "layers"
STEP_BUCKETS: Final = "step_buckets"
LAYER_BUCKETS: Final = "layer_buckets"
ALERTS: Final = "alerts"

_OF_RUN: Final = tuple(name for name in RUN_NAMES if name != "skipped")

_MAX_INTEGER: Final = float(1 << 63)


@dataclass(frozen=True, slots=True, eq=False)
class TableColumn:
    """A column of a table.

    Args:
        values: (rows,) the values; times are datetime64 in ns, UTC, texts are objects.
        known: (rows,) whether there is one; all without.
    """

    values: npt.NDArray[Any]
    known: BoolArray | None = None
    words: Sequence[str] | None = None


Table = Mapping[str, TableColumn]


class TableFormat(Format):
    """Format with one file per table."""

    def add(self, page: Page) -> None:
        for name, table in tables_of(page, self._about.layers, self._about.choice):
            self.write(name, table)

    def add_alerts(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """Write the alerts, and the files of tables of which there is no row."""
        for name, table in empty_tables(self._about.layers, self._about.choice):
            self.write(name, table)
        self.write(ALERTS, alert_table(alerts))

    @abstractmethod
    def write(self, name: str, table: Table) -> None:
        """Add rows to the file of a table."""


def tables_of(
    page: Page, layers: Sequence[Layer], choice: ExportSelection
) -> Iterator[tuple[str, Table]]:
    """Yield the tables that a page has rows of, by name."""
    if page.width == 1:
        yield STEPS, _steps(page)
        if choice.layers is not None:
            yield LAYERS, _layers(page, layers, choice.columns)
        return
    yield STEP_BUCKETS, _buckets(page, [RUN], "column", _OF_RUN)
    if choice.layers is not None:
        names = [layer["name"] for layer in layers]
        yield LAYER_BUCKETS, _buckets(page, choice.columns, "layer", names)


def empty_tables(layers: Sequence[Layer], choice: ExportSelection) -> Iterator[tuple[str, Table]]:
    """Yield the tables of single steps without a row: files of these are always there."""
    none, places = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    tables = {RUN: len(RUN_NAMES), **dict.fromkeys(choice.columns, 0)}
    rows = {
        name: TableNumbers(np.zeros((0, items)), np.zeros((0, items), dtype=np.bool_))
        for name, items in tables.items()
    }
    page = Page(0, 1, none, none, none.astype(np.bool_), places, None, rows, {}, {})
    yield from tables_of(page, layers, choice)


def _times(times_ns: IndexArray) -> npt.NDArray[Any]:
    return times_ns.astype("datetime64[ns]")


def _steps(page: Page) -> Table:
    table = {
        "epoch": TableColumn(np.full(len(page.steps), page.epoch)),
        "step": TableColumn(page.steps),
        "time": TableColumn(_times(page.times_ns)),
        "skipped": TableColumn(page.skipped),
    }
    run = page.rows[RUN]
    for place, name in enumerate(RUN_NAMES):
        if name in _OF_RUN:
            table[name] = TableColumn(run.values[:, place], run.known[:, place])
    return table


def _layers(page: Page, layers: Sequence[Layer], columns: Sequence[str]) -> Table:
    items = np.flatnonzero(page.places < len(layers))  # later ones joined after the export began
    places = page.places[items]
    tables = {name: page.rows[name].of(items) for name in columns if name in page.rows}
    shape = len(page.steps), len(places)
    there = np.zeros(shape, dtype=np.bool_)
    for table in tables.values():
        there |= table.known
    rows = np.flatnonzero(there.ravel())
    place = np.tile(places, shape[0])[rows]
    numel = np.array([layer["numel"] for layer in layers], dtype=np.float64)
    result = {
        "epoch": TableColumn(np.full(len(rows), page.epoch)),
        "step": TableColumn(np.repeat(page.steps, shape[1])[rows]),
        "layer": TableColumn(place, words=[layer["name"] for layer in layers]),
        "numel": _integers(numel[place]),
    }
    for name in columns:
        own_table = tables.get(
            name, TableNumbers(np.full(shape, np.nan), np.zeros(shape, np.bool_))
        )
        values, known = own_table.values.ravel()[rows], own_table.known.ravel()[rows]
        is_count = name in COUNT_COLUMNS
        result[name] = _integers(values, known) if is_count else TableColumn(values, known)
    return result


def _integers(values: npt.NDArray[Any], known: BoolArray | None = None) -> TableColumn:
    fits = np.isfinite(values) & (values < _MAX_INTEGER)
    is_there = fits if known is None else fits & known
    return TableColumn(np.where(is_there, values, 0.0).astype(np.int64), is_there)


def _buckets(page: Page, tables: Sequence[str], what: str, words: Sequence[str]) -> Table:
    """Return the buckets of all tables that a page has, each under its name."""
    if what == "column":
        wanted = np.array([at for at, one in enumerate(RUN_NAMES) if one in words], dtype=np.int64)
        places, names = np.arange(len(words)), tuple[str, ...]()
    else:
        wanted = np.flatnonzero(page.places < len(words))
        places, names = page.places[wanted], tuple(tables)
    there = [name for name in tables if name in page.buckets]
    parts = [_long(page, name, wanted, places) for name in there]
    joined = {
        key: np.concatenate([part[key] for part in parts]) if parts else np.zeros(0)
        for key in ("step", "time", "place", *STATS, *COUNTS)
    }
    first = joined["step"].astype(np.int64)
    table = {
        "epoch": TableColumn(np.full(len(first), page.epoch)),
        "first_step": TableColumn(first),
        "last_step": TableColumn(first + page.width - 1),
        "time": TableColumn(_times(joined["time"].astype(np.int64))),
        what: TableColumn(joined["place"].astype(np.int64), words=words),
    }
    if names:
        sizes = [len(part["place"]) for part in parts]
        numbers = np.repeat([names.index(name) for name in there], sizes)
        table["column"] = TableColumn(numbers.astype(np.int64), words=names)
    for name in STATS:
        table[name] = TableColumn(joined[name], ~np.isnan(joined[name]))
    return table | {name: TableColumn(joined[name].astype(np.int64)) for name in COUNTS}


def _long(
    page: Page, table: str, items: IndexArray, places: IndexArray
) -> dict[str, npt.NDArray[Any]]:
    buckets = page.buckets[table]
    rows = np.flatnonzero(buckets["n"][:, items].ravel())
    columns = {
        "step": np.repeat(page.steps, len(items))[rows],
        "time": np.repeat(page.times_ns, len(items))[rows],
        "place": np.tile(places, len(page.steps))[rows],
    }
    for name in (*STATS, *COUNTS):
        values = buckets[name][:, items].ravel()[rows]
        columns[name] = values.astype(np.float64) if name in STATS else values
    return columns


def alert_table(alerts: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row for each alert: what a person looks for as columns, all of it as JSON."""
    texts = ("id", "rule", "group", "severity", "state")
    steps = ("first_step", "fired_step", "last_step", "resolved_step")
    table = {name: _words(str(alert[name]) for alert in alerts) for name in texts}
    table |= {name: _steps_of([alert[name] for alert in alerts]) for name in steps}
    table["layer"] = _words(str((alert["origin"] or {}).get("layer") or "") for alert in alerts)
    table["num_layers"] = _steps_of([alert["num_layers"] for alert in alerts])
    table["message"] = _words(str(alert["message"]) for alert in alerts)
    without_cursor = ({key: alert[key] for key in alert if key != "cursor"} for alert in alerts)
    table["json"] = _words(json.dumps(each, separators=(",", ":")) for each in without_cursor)
    return table


def _words(texts: Iterable[str]) -> TableColumn:
    return TableColumn(np.array([*texts], dtype=np.object_))


def _steps_of(steps: Sequence[int | None]) -> TableColumn:
    known = np.array([step is not None for step in steps], dtype=np.bool_)
    return TableColumn(np.array([step or 0 for step in steps], dtype=np.int64), known)
