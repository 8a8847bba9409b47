"""The rows in which ranks' numbers are merged: one per column of a frame, and extremes of the norm.

How a row combines over shards and over replicas comes from the definition of its column in
`gradwatch_wire.names`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_wire.columns import (
    INFS,
    L2,
    L2_MAX,
    MEASURED_COLUMNS,
    STATISTIC_COLUMNS,
    UPDATE_COLUMNS,
    ZEROS,
    Combine,
    StatisticColumn,
)
from gradwatch_wire.norms import LARGEST, combine_norms

FRAME_COLUMNS: Final = (*MEASURED_COLUMNS, *UPDATE_COLUMNS)
"""The columns that a frame keeps."""

L2_MIN: Final = "l2_min"
"""The row of the smallest L2 norm over ranks; that of the largest over collections is `l2_max`."""

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Row:
    """Combination of the numbers of one row.

    Args:
        name: Name of the column, or `l2_min`.
        counts_nonfinite: As in `StatisticColumn`.
        nan_is_value: As in `StatisticColumn`.
    """

    name: str
    over_shards: Combine
    over_replicas: np.ufunc
    counts_nonfinite: bool
    nan_is_value: bool


def _row(column: StatisticColumn) -> Row:
    return Row(
        column.name,
        column.combine,
        # fmax passes over NaN, which stands for what was not measured.
        np.maximum if column.nan_is_value else np.fmax,
        column.counts_nonfinite,
        column.nan_is_value,
    )


def _rows() -> Iterable[Row]:
    columns = {column.name: column for column in STATISTIC_COLUMNS}
    yield from (_row(columns[name]) for name in FRAME_COLUMNS)
    yield Row(L2_MIN, columns[L2].combine, np.minimum, counts_nonfinite=False, nan_is_value=True)
    yield _row(columns[L2_MAX])


def _numbers(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, IndexArray]:
    rows_of: dict[Key, list[int]] = {}
    for number, row in enumerate(rows):
        rows_of.setdefault(key(row), []).append(number)
    return {key: np.array(numbers, dtype=np.int64) for key, numbers in rows_of.items()}


ROWS: Final = tuple(_rows())
ROW_OF: Final = {row.name: number for number, row in enumerate(ROWS)}
"""Name to the number of the row. Those of a frame's columns come first, in their order."""

_BY_SHARDS: Final = _numbers(ROWS, lambda row: row.over_shards)
_BY_REPLICAS: Final = _numbers(ROWS, lambda row: row.over_replicas)
_COUNTS_NONFINITE: Final = _numbers(ROWS, lambda row: row.counts_nonfinite)[True]
_NORMS: Final = _numbers(ROWS, lambda row: row.nan_is_value)[True]
NORM_ROWS: Final[list[int]] = _NORMS.tolist()
"""Rows in which NaN is a value."""

COUNT_ROWS: Final[list[int]] = _COUNTS_NONFINITE.tolist()
"""Rows that count what is not finite."""

BESIDE_GRADIENT: Final = np.array(
    [n for n, row in enumerate(ROWS) if row.name in {ZEROS, *UPDATE_COLUMNS}], dtype=np.int64
)
"""Rows that a shard without a gradient adds to: it counts zeros, and has weights."""

_UNKNOWN_IF_PARTIAL: Final = _numbers(
    ROWS, lambda row: not (row.counts_nonfinite or row.nan_is_value)
)[True]


def merge_two(one: FloatArray, other: FloatArray) -> FloatArray:
    """Put two replicas' rows of the same layers together."""
    merged = np.full_like(one, np.nan)
    for ufunc, rows in _BY_REPLICAS.items():
        merged[rows] = ufunc(one[rows], other[rows])
    return merged


def merge_replicas(rows: FloatArray, starts: IndexArray) -> FloatArray:
    """Do the same for replicas that stand side by side: those of each begin at *starts*."""
    merged = np.full((len(rows), len(starts)), np.nan)
    for ufunc, indices in _BY_REPLICAS.items():
        merged[indices] = ufunc.reduceat(rows[indices], starts, axis=1)
    return merged


def merge_shards(rows: FloatArray, starts: IndexArray) -> FloatArray:
    """Return the statistics of layers from those of their shards, which stand side by side.

    Where a shard was not measured the layer is not, except that NaN and Inf are counted as far as
    they were.
    """
    rows = rows.copy()
    known = ~np.isnan(rows[_COUNTS_NONFINITE])
    rows[_COUNTS_NONFINITE] = np.where(known, rows[_COUNTS_NONFINITE], 0.0)
    merged = np.full((len(rows), len(starts)), np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        for combine, indices in _BY_SHARDS.items():
            merged[indices] = _MERGE_SHARDS[combine](rows[indices], starts)
    counted = np.logical_or.reduceat(known, starts, axis=1)
    merged[_COUNTS_NONFINITE] = np.where(counted, merged[_COUNTS_NONFINITE], np.nan)
    return merged


def _largest(rows: FloatArray, starts: IndexArray) -> FloatArray:
    largest: FloatArray = np.maximum.reduceat(rows, starts, axis=1)
    return largest


def _sum(rows: FloatArray, starts: IndexArray) -> FloatArray:
    """Return the sums, at most the largest float: an infinite one would claim an Inf."""
    total: FloatArray = np.add.reduceat(rows, starts, axis=1)
    overflowed = np.isinf(total) & ~np.logical_or.reduceat(np.isinf(rows), starts, axis=1)
    return np.where(overflowed, np.copysign(LARGEST, total), total)


def _root_sum_squares(rows: FloatArray, starts: IndexArray) -> FloatArray:
    counts = np.diff(starts, append=rows.shape[1])
    return combine_norms(
        np.abs(rows),
        np,
        largest=lambda norms: np.maximum.reduceat(norms, starts, axis=1),
        add=lambda squares: np.add.reduceat(squares, starts, axis=1),
        spread=lambda scale: np.repeat(scale, counts, axis=1),
    )


_MERGE_SHARDS: Final[dict[Combine, Callable[[FloatArray, IndexArray], FloatArray]]] = {
    Combine.ROOT_SUM_SQUARES: _root_sum_squares,
    Combine.SUM: _sum,
    Combine.MAX: _largest,
}


def withhold(rows: FloatArray, partial: BoolArray) -> None:
    """Clear what is not known of a layer when a shard of it is missing.

    What stays is that something was non-finite: no other shard could make it finite.
    """
    rows[np.ix_(_UNKNOWN_IF_PARTIAL, partial)] = np.nan
    norms = rows[np.ix_(_NORMS, partial)]
    infinite = rows[ROW_OF[INFS], partial] > 0
    rows[np.ix_(_NORMS, partial)] = np.where(
        np.isfinite(norms), np.where(infinite, np.inf, np.nan), norms
    )
