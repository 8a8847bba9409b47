"""A natural logarithm that is the same number on every processor."""

from __future__ import annotations

from typing import Final

import numpy as np

from gradwatch_server.core.arrays import FloatArray

LN_2: Final = 0.6931471805599453
_SQRT_HALF: Final = 0.7071067811865476
_TERMS: Final = (1 / 17, 1 / 15, 1 / 13, 1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3)


def natural_log(values: FloatArray) -> FloatArray:
    """Return ln of finite numbers above 0, elsewhere NaN; within 2 units of the last place.

    `numpy.log` differs by one in the last place between processors with other vector instructions,
    and the same log must give the same alerts on another machine. This takes frexp, then the series
    ln f = 2 (s + s³/3 + s⁵/5 + ...) with s = (f - 1) / (f + 1) and f from √½ to √2, by additions,
    multiplications and one division.
    """
    usable = (values > 0.0) & (values < np.inf)
    fraction, exponent = np.frexp(np.where(usable, values, 1.0))
    low = fraction < _SQRT_HALF
    np.multiply(fraction, 2.0, out=fraction, where=low)
    s = fraction - 1.0
    s /= fraction + 1.0
    squared = s * s
    series = squared * _TERMS[0]
    for term in _TERMS[1:]:
        series += term
        series *= squared
    series *= s
    series += s
    series += series
    logarithm: FloatArray = (exponent - low) * LN_2
    logarithm += series
    logarithm[~usable] = np.nan
    return logarithm
