"""Buckets: what a curve was over a number of steps, with no minimum, maximum or NaN hidden.

Bucket k of a width holds the steps `[k * width, (k + 1) * width)`, counted from step 0 of the
epoch: its edges never depend on what was asked for, so that nothing moves while a run grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from gradwatch_server.core.arrays import FloatArray, IndexArray, Item
from gradwatch_server.curves.rows import Rows

STATS: Final = ("min", "max", "mean", "last")
"""Of the finite values of a bucket, NaN where there is none."""

COUNTS: Final = ("n", "nan", "inf", "zero", "skipped")
"""Steps with a value; those at which it was NaN, or infinite; finite ones at which it was zero; and
those of a non-finite value that a GradScaler skipped, which count as neither NaN nor Inf."""

MANY_ITEMS: Final = 64
"""Items from which on rows are added up as wholes."""

_MIN, _MAX, MEAN, _LAST = range(len(STATS))
_N, _NAN, _INF, _ZERO, _SKIPPED = range(len(COUNTS))


@dataclass(frozen=True, slots=True, eq=False)
class Buckets:
    """Buckets of some items; those without any step are left out.

    Args:
        numbers: (buckets,) which they are, rising.
        times_ns: (buckets,) when the last record of each came in, nanoseconds since the epoch.
        stats: (4, buckets, items) in the order of `STATS`.
        counts: (5, buckets, items) in the order of `COUNTS`.
    """

    width: int
    numbers: IndexArray
    times_ns: IndexArray
    stats: FloatArray
    counts: IndexArray

    @property
    def steps(self) -> IndexArray:
        """(buckets,) the first step of each."""
        steps: IndexArray = self.numbers * self.width
        return steps

    @property
    def finite(self) -> IndexArray:
        """(buckets, items) how many values were finite."""
        n, nan, inf, _, skipped = self.counts
        finite: IndexArray = n - nan - inf - skipped
        return finite

    @classmethod
    def of(cls, rows: Rows, width: int) -> Self:
        numbers = rows.steps // width
        starts = _starts(numbers)
        finite = rows.known & np.isfinite(rows.values)
        if width > 1 and finite.all() and finite.size:
            return cls(width, numbers[starts], *_of_finite(rows, starts))
        bad = rows.known & ~finite
        skipped = bad & rows.skipped[:, None]
        taken = bad & ~skipped
        masks = (
            rows.known,
            taken & np.isnan(rows.values),
            taken & np.isinf(rows.values),
            finite & (rows.values == 0.0),
            skipped,
        )
        if len(starts) == len(numbers):  # each has one row, of which all four are the same
            value = np.where(finite, rows.values, np.nan)
            stats = np.broadcast_to(value, (len(STATS), *value.shape))
            return cls(width, numbers, rows.times_ns, stats, np.array(masks, dtype=np.int64))
        counts = np.stack([_add(mask.astype(np.int64), starts) for mask in masks])
        stats = np.stack([rows.values] * len(STATS))
        return cls(
            width,
            numbers[starts],
            rows.times_ns[_ends(starts, len(numbers))],
            _reduce(stats, finite.astype(np.int64), starts),
            counts,
        )

    @classmethod
    def joined(cls, pieces: Sequence[Buckets], width: int) -> Self:
        """Put pieces together that follow one another, in buckets of a width.

        Args:
            pieces: Of the same items, one at least; two may share the bucket where they meet.
        """
        numbers = np.concatenate([piece.steps for piece in pieces]) // width
        times_ns = np.concatenate([piece.times_ns for piece in pieces])
        stats = np.concatenate([piece.stats for piece in pieces], axis=1)
        counts = np.concatenate([piece.counts for piece in pieces], axis=1)
        starts = _starts(numbers)
        if len(starts) == len(numbers):
            return cls(width, numbers, times_ns, stats, counts)
        # Few pieces share a bucket with the next one, unless the width is a wider one.
        lengths = np.diff(starts, append=len(numbers))
        is_shared = lengths > 1
        rows = np.repeat(is_shared, lengths)
        own_starts = np.cumsum(lengths[is_shared]) - lengths[is_shared]
        n, nan, inf, _, skipped = parts = counts[:, rows]
        made, made_counts = stats[:, starts], counts[:, starts]
        made[:, is_shared] = _reduce(stats[:, rows], n - nan - inf - skipped, own_starts)
        made_counts[:, is_shared] = [_reduceat(np.add, part, own_starts) for part in parts]
        times_ns = times_ns[_ends(starts, len(numbers))]
        return cls(width, numbers[starts], times_ns, made, made_counts)

    def merged(self, other: Buckets) -> Self:
        """Put buckets of other steps into the same ones, by when their last records came in.

        The last value is that of the newer part, or of the other where the newer has none that is
        finite.
        """
        if not len(other.numbers):
            return self
        numbers = np.concatenate([self.numbers, other.numbers])
        times_ns = np.concatenate([self.times_ns, other.times_ns])
        order = np.lexsort((times_ns, numbers))
        stats = np.concatenate([self.stats, other.stats], axis=1)[:, order]
        counts = np.concatenate([self.counts, other.counts], axis=1)[:, order]
        both = type(self)(self.width, numbers[order], times_ns[order], stats, counts)
        return self.joined([both], self.width)

    def within(self, first: int, last: int) -> Self:
        """Return the buckets with the numbers in `[first, last]`."""
        span = slice(
            int(np.searchsorted(self.numbers, first)),
            int(np.searchsorted(self.numbers, last, "right")),
        )
        return type(self)(
            self.width,
            self.numbers[span],
            self.times_ns[span],
            self.stats[:, span],
            self.counts[:, span],
        )

    def spread(self, first: int, last: int) -> Self:
        """Return all buckets with the numbers in `[first, last]`, also those without any step.

        The time of such a one is that of the bucket before it, 0 without any.
        """
        buckets = self.within(first, last)
        if len(buckets.numbers) == last - first + 1:
            return buckets
        numbers = np.arange(first, last + 1, dtype=np.int64)
        items = self.stats.shape[2]
        stats = np.full((len(STATS), len(numbers), items), np.nan)
        counts = np.zeros((len(COUNTS), len(numbers), items), dtype=np.int64)
        places = buckets.numbers - first
        stats[:, places], counts[:, places] = buckets.stats, buckets.counts
        times_ns = np.zeros(len(numbers), dtype=np.int64)
        times_ns[places] = buckets.times_ns
        return type(self)(self.width, numbers, np.maximum.accumulate(times_ns), stats, counts)

    def scaled(self, factor: FloatArray) -> Self:
        """Return the same of values that are multiplied with *factor*, (items,), above zero."""
        with np.errstate(over="ignore"):
            stats = np.clip(self.stats * factor, -_LARGEST, _LARGEST)
        return type(self)(self.width, self.numbers, self.times_ns, stats, self.counts)


_LARGEST: Final = float(np.finfo(np.float64).max)


def width_for(first: int, last: int, points: int) -> int:
    """Return the smallest power of two in which *first* to *last* are *points* buckets at most."""
    width = 1
    while last // width - first // width >= points:
        width *= 2
    return width


def _starts(numbers: IndexArray) -> IndexArray:
    """Return where a new bucket begins."""
    starts: IndexArray = np.flatnonzero(np.diff(numbers, prepend=-1))
    return starts


def _ends(starts: IndexArray, length: int) -> IndexArray:
    return np.append(starts[1:], length)[: len(starts)] - 1


def _add(values: IndexArray, starts: IndexArray) -> IndexArray:
    if not len(starts):
        return values[:0]
    return _reduceat(np.add, values, starts)


def _reduceat(ufunc: np.ufunc, values: npt.NDArray[Item], starts: IndexArray) -> npt.NDArray[Item]:
    """Return `ufunc.reduceat` along the first axis, several times as fast for many items."""
    if values.shape[1] < MANY_ITEMS:
        reduced: npt.NDArray[Item] = ufunc.reduceat(values, starts, axis=0)
        return reduced
    lengths = np.diff(starts, append=len(values))
    longest = int(lengths.max())
    if (lengths == longest).all():
        made: npt.NDArray[Item] = ufunc.reduce(values.reshape(len(starts), longest, -1), axis=1)
        return made
    made = values[starts]
    for offset in range(1, longest):
        long = np.flatnonzero(lengths > offset)
        made[long] = ufunc(made[long], values[starts[long] + offset])
    return made


def _of_finite(rows: Rows, starts: IndexArray) -> tuple[IndexArray, FloatArray, IndexArray]:
    """Return times, stats and counts where each value is known and finite, as nearly all are."""
    values, ends = rows.values, _ends(starts, len(rows.steps))
    lengths = np.diff(starts, append=len(values))
    stats = np.zeros((len(STATS), len(starts), values.shape[1]))
    counts = np.zeros((len(COUNTS), *stats.shape[1:]), dtype=np.int64)
    counts[_N] = lengths[:, None]
    if not values.any():  # as most counts
        counts[_ZERO] = counts[_N]
        return rows.times_ns[ends], stats, counts
    stats[_MIN] = _reduceat(np.minimum, values, starts)
    stats[_MAX] = _reduceat(np.maximum, values, starts)
    # Divided first: a sum may overflow.
    shares = values.astype(np.float64) / np.repeat(lengths, lengths)[:, None]
    np.clip(_reduceat(np.add, shares, starts), stats[_MIN], stats[_MAX], out=stats[MEAN])
    stats[_LAST] = values[ends]
    zeros = values == 0.0
    if zeros.any():
        counts[_ZERO] = _add(zeros.astype(np.int64), starts)
    return rows.times_ns[ends], stats, counts


def _reduce(stats: FloatArray, finite: IndexArray, starts: IndexArray) -> FloatArray:
    """Put the four numbers of pieces together.

    Args:
        stats: (4, pieces, items).
        finite: (pieces, items) finite values behind each.

    Returns:
        (4, buckets, items).
    """
    items = finite.shape[1]
    made = np.full((len(STATS), len(starts), items), np.nan)
    if not len(starts) or not items:
        return made
    has = finite > 0
    total = _reduceat(np.add, finite, starts)
    any_ = total > 0
    lowest = _reduceat(np.minimum, np.where(has, stats[_MIN], np.inf), starts)
    highest = _reduceat(np.maximum, np.where(has, stats[_MAX], -np.inf), starts)
    # Divided first: the sum of finite values may overflow.
    lengths = np.diff(starts, append=len(finite))
    shares = finite / np.repeat(np.maximum(total, 1), lengths, axis=0)
    mean = _reduceat(np.add, np.where(has, stats[MEAN], 0.0) * shares, starts)
    places = np.where(has, np.arange(len(finite))[:, None], -1)
    last = _reduceat(np.maximum, places, starts)
    newest = np.take_along_axis(stats[_LAST], np.maximum(last, 0), axis=0)
    statistics = (lowest, highest, np.clip(mean, lowest, highest), newest)
    for row, values in enumerate(statistics):
        made[row] = np.where(any_, values, np.nan)
    return made
