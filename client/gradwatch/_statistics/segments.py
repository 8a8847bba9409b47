"""Norms of a few small CPU tensors: segments of one flat tensor, summed in float64.

A call of torch takes longer than the numbers of a small tensor, and this way has the fewest calls.
The limits are where rows took as long, tried with 6 to 600 tensors of 16 to 10,000 elements. In
float64 the square of any narrower number is in range, so no norm has to be certified.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

MAX_SEGMENTS: Final = 256
MAX_ELEMENTS: Final = 24_576


def are_small(sizes: Sequence[int]) -> bool:
    """Tell whether this is the fastest way for tensors with so many elements; of none it is not."""
    return 0 < len(sizes) <= MAX_SEGMENTS and min(sizes) > 0 and sum(sizes) <= MAX_ELEMENTS


def sums_of(flat: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return (segments,) sums.

    Args:
        flat: (elements,) float64 on the CPU, one segment after the other.
        sizes: Elements of each segment.
    """
    found: Tensor = torch.segment_reduce(flat, "sum", lengths=_lengths(sizes), unsafe=True)
    return found


def norms_of(flat: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return (segments,) L2 norms of a flat tensor of a type narrower than float64."""
    wide = flat.to(torch.float64)
    return sums_of(wide * wide, sizes).sqrt_()


@lru_cache(maxsize=64)
def _lengths(sizes: tuple[int, ...]) -> Tensor:
    return torch.tensor(sizes, device="cpu")
