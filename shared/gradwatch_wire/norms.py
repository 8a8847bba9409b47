"""The L2 norm of several tensors together, from the norm of each: one formula for both sides.

The root of the sum of squares, each divided by the largest norm first, so that no square leaves
the range of float64. What is finite stays finite, at most the largest float64: an infinite result
means an infinite norm. NaN stays NaN.

The arrays are numpy's or torch's, and *xp* is the module that they come from, whose functions have
the same names. Nothing depends on a value, so that the formula runs on a device without waiting
for it, and compiles to one graph.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, TypeVar

LARGEST: Final = sys.float_info.max
"""The largest finite float64."""

Array = TypeVar("Array")


def total_norm(norms: Array, xp: ModuleType) -> Array:
    """Return the L2 norm of all tensors together.

    Args:
        norms: (tensors,) float64, at least one, none negative.
        xp: `numpy` or `torch`.

    Returns:
        0-d float64 on their device.
    """
    return combine_norms(norms, xp, largest=xp.amax, add=xp.sum, spread=lambda one: one)


def combine_norms(
    norms: Array,
    xp: ModuleType,
    *,
    largest: Callable[[Array], Array],
    add: Callable[[Array], Array],
    spread: Callable[[Array], Array],
) -> Array:
    """Return the L2 norm of each group of tensors.

    Args:
        norms: Float64, none negative.
        xp: `numpy` or `torch`.
        largest: Returns the largest number of each group, NaN if one is.
        spread: Gives the number of each group to all members of it, or so that it broadcasts.
    """
    peak: Any = largest(norms)
    finite = xp.isfinite(peak)
    scale = xp.where(finite & (peak > 0.0), peak, 1.0)
    total = scale * xp.sqrt(add(xp.square(xp.divide(norms, spread(scale)))))
    return xp.where(finite, xp.clip(total, None, LARGEST), total)  # type: ignore[no-any-return]  # of a module that is given
