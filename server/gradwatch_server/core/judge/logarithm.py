"""A natural logarithm that is the same number on every processor."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray

LN_2: Final = 0.6931471805599453
_SQRT_HALF: Final = 0.7071067811865476
_SQRT_HALF_BITS: Final = int(np.array(_SQRT_HALF).view(np.int64))
_FRACTION_BITS: Final = 52
_FRACTION_MASK: Final = (1 << _FRACTION_BITS) - 1
_SMALLEST: Final = 2.2250738585072014e-308
"""The smallest normal number."""

_TERMS: Final = (1 / 17, 1 / 15, 1 / 13, 1 / 11, 1 / 9, 1 / 7, 1 / 5, 1 / 3)


def natural_log(values: FloatArray) -> FloatArray:
    """Return ln of finite numbers above 0, elsewhere NaN; within 2 units of the last place.

    `numpy.log` differs by one in the last place between processors with other vector instructions,
    and the same log must give the same alerts on another machine. This takes the exponent out, then
    the series ln f = 2 (s + s³/3 + s⁵/5 + ...) with s = (f - 1) / (f + 1) and f from √½ to √2, by
    additions, multiplications and one division.
    """
    usable: BoolArray | None = None
    are_normal = _are_normal(values)
    if not are_normal:
        usable = (values > 0.0) & (values < np.inf)
        values = np.where(usable, values, 1.0)
        are_normal = _are_normal(values)
    s, exponent = _split(values, are_normal=are_normal)
    divisor = s + 1.0
    s -= 1.0
    s /= divisor
    squared = np.multiply(s, s, out=divisor)
    series = squared * _TERMS[0]
    for term in _TERMS[1:]:
        series += term
        series *= squared
    series *= s
    series += s
    series += series
    exponent *= LN_2
    exponent += series
    if usable is not None:
        exponent[~usable] = np.nan
    return exponent


def _are_normal(values: FloatArray) -> bool:
    """Tell whether all are normal numbers above 0. Of a NaN `argmin` says that it is the least."""
    return not values.size or bool(
        values.item(values.argmin()) >= _SMALLEST and values.item(values.argmax()) < math.inf
    )


def _split(values: FloatArray, *, are_normal: bool) -> tuple[FloatArray, FloatArray]:
    """Return fractions from √½ to √2, and the powers of two that they are to be multiplied by."""
    if not are_normal:
        fraction, exponent = np.frexp(values)
        low = fraction < _SQRT_HALF
        np.multiply(fraction, 2.0, out=fraction, where=low)
        return fraction, (exponent - low).astype(np.float64)
    # The same of normal numbers, several at once: frexp takes one after the other.
    bits = values.view(np.int64) - _SQRT_HALF_BITS
    power = bits >> _FRACTION_BITS
    bits &= _FRACTION_MASK
    bits += _SQRT_HALF_BITS
    return bits.view(np.float64), power.astype(np.float64)
