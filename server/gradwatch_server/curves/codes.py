"""Codes: what a cell of a picture of layers and steps is, in 16 bits.

A finite magnitude is on a logarithmic scale, one code being 0.30 %; what is none has a code of its
own, so that zero, nothing, NaN and Inf cannot be taken for one another or for something small.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.curves.buckets import Buckets

CodeArray: TypeAlias = npt.NDArray[np.uint16]

NO_RECORD: Final = 0
ABSENT: Final = 1
ZERO: Final = 2
NAN: Final = 3
INF: Final = 4
NAN_AND_INF: Final = 5
BELOW: Final = 6
ABOVE: Final = 7
SKIPPED: Final = 8
FIRST: Final = 16
"""The first code of a magnitude, which is `2 ** LOWEST`."""

LOWEST: Final = -149
HIGHEST: Final = 129
"""Powers of two between which magnitudes have codes of their own."""

STEPS: Final = (65_535 - FIRST) / (HIGHEST - LOWEST)
"""Codes for each doubling."""

NAMES: Final = {
    "no_record": NO_RECORD,
    "absent": ABSENT,
    "zero": ZERO,
    "nan": NAN,
    "inf": INF,
    "nan_and_inf": NAN_AND_INF,
    "below": BELOW,
    "above": ABOVE,
    "skipped": SKIPPED,
    "first": FIRST,
}
"""Codes as readers see them."""


def encode(magnitudes: FloatArray) -> CodeArray:
    """Return the codes of finite magnitudes; NaN stands for none and is `ABSENT`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log2(np.abs(magnitudes))
        scaled = FIRST + np.rint((logs - LOWEST) * STEPS)
    known = np.where((logs >= LOWEST) & (logs <= HIGHEST), scaled, 0.0)
    codes = known.astype(np.uint16)
    codes[logs < LOWEST] = BELOW
    codes[logs > HIGHEST] = ABOVE
    codes[magnitudes == 0.0] = ZERO
    codes[np.isnan(magnitudes)] = ABSENT
    return codes


def decode(codes: CodeArray) -> FloatArray:
    """Return the magnitudes, within 0.15 %; NaN for codes that are none."""
    values = np.exp2((codes.astype(np.float64) - FIRST) / STEPS + LOWEST)
    return np.where(codes >= FIRST, values, np.where(codes == ZERO, 0.0, np.nan))


def medians(buckets: Buckets) -> FloatArray:
    """Return (items,) the median of the finite means, NaN without any."""
    means = buckets.stats[2]
    result = np.full(means.shape[1], np.nan)
    missing = np.isnan(means)
    whole = ~missing.any(axis=0)
    some = ~(whole | missing.all(axis=0))
    if len(means):
        result[whole] = np.median(means[:, whole], axis=0)  # several times as fast
    if some.any():
        result[some] = np.nanmedian(means[:, some], axis=0)
    return result


def usual(norms: FloatArray) -> CodeArray:
    """Return (items, buckets) the codes of usual norms, `NO_RECORD` where one is NaN.

    Args:
        norms: (buckets, items).
    """
    coded = encode(norms)
    coded[np.isnan(norms)] = NO_RECORD
    return np.ascontiguousarray(coded.T)


def cells(buckets: Buckets, has_record: npt.NDArray[np.bool_], usual_: CodeArray) -> CodeArray:
    """Return (items, buckets) the code of what is most urgent in each cell.

    That is a NaN or Inf, then the magnitude that is farthest from what is usual of the item.

    Args:
        has_record: (buckets,) whether there is any record of each.
        usual_: (items, buckets) the code of what was usual.
    """
    result = encode(buckets.stats[1])
    if buckets.width > 1:
        result = _farther(encode(buckets.stats[0]), result, usual_.T)
    _, nan, inf, _, skipped = buckets.counts
    result = np.where(skipped > 0, SKIPPED, result)
    result = np.where(nan > 0, np.where(inf > 0, NAN_AND_INF, NAN), np.where(inf > 0, INF, result))
    result = np.where(has_record[:, None], result, NO_RECORD)
    return np.ascontiguousarray(result.T.astype(np.uint16))


def _farther(low: CodeArray, high: CodeArray, usual_: CodeArray) -> CodeArray:
    """Return the codes of the least or of the largest, those that are farther from the usual."""
    middle = np.where(usual_ >= FIRST, usual_, high).astype(np.int64)
    is_low = (low >= FIRST) & (abs(low - middle) > abs(high - middle))
    farther: CodeArray = np.where(is_low & (high != ABOVE), low, high)
    return farther
