"""The types of arrays that the core works with, and how they grow with the layers."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
IndexArray: TypeAlias = npt.NDArray[np.int64]

Item = TypeVar("Item", bound=np.generic)


def grown(array: npt.NDArray[Item], number: int, fill: float) -> npt.NDArray[Item]:
    """Return the array with *number* items, those that were missing being *fill*."""
    more = number - len(array)
    if more <= 0:
        return array
    return np.concatenate([array, np.full(more, fill, dtype=array.dtype)])
