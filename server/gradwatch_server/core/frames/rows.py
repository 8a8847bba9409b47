"""The rows that ranks' numbers are merged in: `COLUMNS`, and below them extremes of the L2 norm.

NaN stands for what was not measured, except among L2 norms, where it is news.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from gradwatch_server.core.frames.frame import (
    COLUMNS,
    INFS,
    L1,
    L2,
    LINF,
    NANS,
    ZEROS,
    BoolArray,
    FloatArray,
    IndexArray,
)

L2_MIN: Final = len(COLUMNS)
"""The row of the smallest L2 norm over ranks."""

PEAK: Final = L2_MIN + 1
"""The row of the largest L2 norm over collections; there only if a record has `l2_max`."""


def nonfinite(rows: FloatArray) -> BoolArray:
    """Return (layers,) whether something non-finite was seen."""
    bad: BoolArray = ~(np.isfinite(rows[L2]) & np.isfinite(rows[L2_MIN]))
    if len(rows) > PEAK:
        bad |= ~np.isfinite(rows[PEAK])
    for row in (NANS, INFS):
        bad |= rows[row] > 0
    return bad


def merge_two(one: FloatArray, other: FloatArray) -> FloatArray:
    """Put two replicas' rows of the same layers together."""
    # fmax passes over NaN. One among the L2 norms must not hide behind another rank's number.
    both: FloatArray = np.fmax(one, other)
    both[L2] = np.maximum(one[L2], other[L2])
    both[L2_MIN] = np.minimum(one[L2_MIN], other[L2_MIN])
    both[PEAK:] = np.maximum(one[PEAK:], other[PEAK:])
    return both


def merge_replicas(rows: FloatArray, starts: IndexArray) -> FloatArray:
    """Do the same for replicas that stand side by side: those of each begin at *starts*."""
    merged: FloatArray = np.fmax.reduceat(rows, starts, axis=1)
    merged[L2] = np.maximum.reduceat(rows[L2], starts)
    merged[L2_MIN] = np.minimum.reduceat(rows[L2_MIN], starts)
    merged[PEAK:] = np.maximum.reduceat(rows[PEAK:], starts, axis=1)
    return merged


def add_pieces(rows: FloatArray, starts: IndexArray) -> FloatArray:
    """Return the statistics of layers from those of their pieces, which stand side by side.

    L2 is √Σl2², L1 and counts are sums, the maximum norm is the largest. Where a piece was not
    measured the layer is not, except that NaN and Inf are counted as far as they were.
    """
    whole = np.empty((len(rows), len(starts)))
    with np.errstate(over="ignore", invalid="ignore"):
        for row in (L1, ZEROS):
            whole[row] = np.add.reduceat(rows[row], starts)
        for row in (NANS, INFS):
            known = ~np.isnan(rows[row])
            total = np.add.reduceat(np.where(known, rows[row], 0.0), starts)
            whole[row] = np.where(np.logical_or.reduceat(known, starts), total, np.nan)
    whole[LINF] = np.maximum.reduceat(rows[LINF], starts)
    norms = [L2, *range(L2_MIN, len(rows))]
    whole[norms] = _root_sum_square(rows[norms], starts)
    return whole


def _root_sum_square(norms: FloatArray, starts: IndexArray) -> FloatArray:
    """Return √Σx² from each start to the next, scaled so that no square overflows or vanishes."""
    with np.errstate(over="ignore", invalid="ignore"):
        largest = np.maximum.reduceat(np.abs(norms), starts, axis=1)
        scale = np.where(np.isfinite(largest) & (largest > 0.0), largest, 1.0)
        counts = np.diff(starts, append=norms.shape[1])
        squares = np.square(norms / np.repeat(scale, counts, axis=1))
        root: FloatArray = scale * np.sqrt(np.add.reduceat(squares, starts, axis=1))
    return root


def withhold(rows: FloatArray, partial: BoolArray) -> None:
    """Take back what is not known of a layer when a piece of it is missing.

    What stays is that something was non-finite: no other piece could make it finite.
    """
    for row in (L1, LINF, ZEROS):
        rows[row, partial] = np.nan
    for row in (L2, *range(L2_MIN, len(rows))):
        known = np.where(np.isfinite(rows[row]), np.nan, rows[row])
        known[np.isnan(known) & np.isfinite(rows[row]) & (rows[INFS] > 0)] = np.inf
        rows[row, partial] = known[partial]
