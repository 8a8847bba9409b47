"""Pages of what is kept of many layers at once, for who reads all of it: an export for one.

A page is of one width: single steps where they are kept, else buckets. Nothing is worked out or
filled in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gradwatch_server.api.series_range import Range
from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.curves.buckets import COUNTS, STATS, Buckets
from gradwatch_server.curves.columns import RUN_TABLE
from gradwatch_server.curves.facts import SeriesQuery
from gradwatch_server.curves.reader import all_run_columns
from gradwatch_server.curves.rows import Rows

MAX_NUMBERS: Final = 1_000_000
"""Numbers of a page, unless one step alone has more."""

MAX_STEPS: Final = 4_096
"""Steps or buckets of a page."""

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class KeptPages:
    """Reads pages of one range.

    Args:
        range_: The range, with at least one step.
        places: (layers,) the layers that are wanted.
    """

    range_: Range
    columns: Sequence[str]
    places: IndexArray

    def page(self, limit: int) -> tuple[Arrays, dict[str, Any]]:
        """Return the arrays of the first page, and what there is to be said of it."""
        width = self._width(self.range_.first)
        last = self._end(width, min(limit, self._most(width)))
        arrays = self._steps(last) if width == 1 else self._buckets(width, last)
        next_step = last + 1 if last < self.range_.last else None
        return arrays, {"width": width, "next": next_step}

    def _most(self, width: int) -> int:
        per_row = len(self.columns) * len(self.places) + len(all_run_columns())
        per_row *= 1 if width == 1 else len(STATS) + len(COUNTS)
        return max(1, min(MAX_STEPS, MAX_NUMBERS // per_row))

    def _width(self, step: int) -> int:
        return self.range_.history.finest(self._epoch, step)

    @property
    def _epoch(self) -> int:
        return self.range_.span.epoch if self.range_.span else 0

    def _wanted(self, table: str, items: IndexArray, last: int) -> SeriesQuery:
        return SeriesQuery(self._epoch, table, items, self.range_.first, last)

    def _end(self, width: int, limit: int) -> int:
        """Return the last step of the page."""
        first, last = self.range_.first, self.range_.last
        if width > 1:
            last = min(last, self._finer_from(width) - 1)
        count = 0
        wanted = self._wanted(RUN_TABLE, np.zeros(0, dtype=np.int64), last)
        if width == 1:
            for rows in self.range_.history.rows(wanted):
                if count + len(rows.steps) > limit:
                    return int(rows.steps[limit - count]) - 1
                count += len(rows.steps)
            return last
        return min(last, (first // width + limit) * width - 1)

    def _finer_from(self, width: int) -> int:
        """Return the first step from which on there are narrower buckets, or single steps."""
        low, high = self.range_.first, self.range_.last + 1
        while low < high:
            middle = (low + high) // 2
            if self._width(middle) < width:
                high = middle
            else:
                low = middle + 1
        return low

    # Single steps

    def _steps(self, last: int) -> Arrays:
        run = self._rows(RUN_TABLE, all_run_columns(), last)
        tables = {name: self._rows(name, self.places, last) for name in self._layer_columns()}
        all_rows = (run, *tables.values())
        steps = np.unique(np.concatenate([rows.steps for rows in all_rows]))
        times_ns, skipped = np.zeros(len(steps), np.int64), np.zeros(len(steps), np.uint8)
        for rows in all_rows:
            at = np.searchsorted(steps, rows.steps)
            times_ns[at], skipped[at] = rows.times_ns, rows.skipped
        arrays: Arrays = {"step": steps, "time_ns": times_ns, "skipped": skipped}
        for name, rows in (("run", run), *tables.items()):
            arrays |= _numbers(name, *_aligned(rows, steps))
        return arrays

    def _layer_columns(self) -> Iterator[str]:
        return iter(self.columns if len(self.places) else ())

    def _rows(self, table: str, items: IndexArray, last: int) -> Rows:
        none = np.zeros((0, len(items)))
        pieces = list(self.range_.history.rows(self._wanted(table, items, last)))
        empty = np.zeros(0, dtype=np.int64)
        nothing = Rows(empty, empty, empty.astype(bool), none, none.astype(bool))
        return Rows.joined([nothing, *pieces])

    # Buckets

    def _buckets(self, width: int, last: int) -> Arrays:
        history = self.range_.history
        run = history.buckets(self._wanted(RUN_TABLE, all_run_columns(), last), width)
        arrays: Arrays = {"step": run.steps, "time_ns": run.times_ns}
        arrays |= _of_buckets("run", run, run.numbers)
        for name in self._layer_columns():
            buckets = history.buckets(self._wanted(name, self.places, last), width)
            arrays |= _of_buckets(name, buckets, run.numbers)
        return arrays


def _aligned(rows: Rows, steps: IndexArray) -> tuple[FloatArray, BoolArray]:
    """Return the numbers at these steps; of a damaged block some may lack."""
    if len(rows.steps) == len(steps):
        return rows.values, rows.known
    at = np.searchsorted(steps, rows.steps)
    values = np.full((len(steps), rows.values.shape[1]), np.nan)
    known = np.zeros(values.shape, dtype=np.bool_)
    values[at], known[at] = rows.values, rows.known
    return values, known


def _numbers(name: str, values: FloatArray, known: BoolArray) -> Arrays:
    """Return numbers, NaN where there is none; `known` is only sent where that does not say it."""
    values = np.where(known, values, np.nan)
    arrays: Arrays = {name: _narrow(values)}
    if (known & np.isnan(values)).any():
        arrays[f"{name}.known"] = known.astype(np.uint8)
    return arrays


def _of_buckets(name: str, buckets: Buckets, numbers: IndexArray) -> Arrays:
    """Return the buckets with these numbers; of a damaged block some may lack."""
    first, last = (int(numbers[0]), int(numbers[-1])) if len(numbers) else (0, -1)
    spread = buckets.spread(first, last)
    at = numbers - first
    arrays = {
        f"{name}.{stat}": _narrow(spread.stats[place][at]) for place, stat in enumerate(STATS)
    }
    counts = {f"{name}.{one}": spread.counts[place][at] for place, one in enumerate(COUNTS)}
    return arrays | {key: one.astype(np.uint32) for key, one in counts.items()}


def _narrow(values: FloatArray) -> npt.NDArray[Any]:
    """Return numbers as float32 where that holds each of them, which halves what is sent."""
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = values.astype(np.float32)
    same = (narrow.astype(np.float64) == values) | np.isnan(values)
    return narrow if same.all() else values
