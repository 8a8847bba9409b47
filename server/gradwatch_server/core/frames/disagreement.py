"""By how much ranks differ in what has to be equal on all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Disagreement:
    """By how much replicas of one step differ.

    Args:
        exact: (layers,) largest relative difference between two ranks in the largest magnitude and
            the counts; NaN where no two ranks can be compared, Inf where only one is non-finite.
        sums: (layers,) the same of the L2 and the L1 norm.
        is_uniform: Whether all ranks compute their numbers in the same way.
        weights: (layers,) whether the digests of the weights differ.
        weights_seen: (layers,) whether two ranks sent one.
    """

    exact: FloatArray
    sums: FloatArray
    is_uniform: bool
    weights: BoolArray
    weights_seen: BoolArray

    @property
    def seen(self) -> BoolArray:
        """(layers,) whether the gradients of two ranks could be compared."""
        return ~np.isnan(self.sums)

    @classmethod
    def of_nothing(cls, num_layers: int) -> Self:
        """Return that of records in which nothing can be compared."""
        numbers = np.full((2, num_layers), np.nan)
        flags = np.zeros((2, num_layers), dtype=np.bool_)
        return cls(numbers[0], numbers[1], True, flags[0], flags[1])
