"""Batches that all frameworks train on."""

from __future__ import annotations

import torch
from torch import Tensor


def batches(count: int, bad: int | None = None) -> list[tuple[Tensor, Tensor]]:
    """Return *count* of 4 samples with 8 features each, the same every time, one *bad*."""
    generator = torch.Generator().manual_seed(1)
    made = [
        (torch.randn(4, 8, generator=generator), torch.randn(4, 1, generator=generator))
        for _ in range(count)
    ]
    if bad is not None:
        made[bad][0][0, 0] = torch.nan
    return made
