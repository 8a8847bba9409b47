"""The path for small models on the CPU: a few calls for all tensors together, in float64.

Below some size the machinery of the other paths costs more than the numbers. Every square of a
float32 or shorter lies inside float64's range, so the plain sum of squares is exact enough. Tiny
tensors are put into one and summed by segments: torch's fused norm costs microseconds for each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Final

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

from gradwatch._statistics.gradients import count_nonfinite
from gradwatch_wire.columns import INFS, L2, NANS

MAX_ELEMENTS: Final = 1 << 17
"""Elements of all gradients together up to which this path is faster than rows in float32."""

MAX_MEAN_ELEMENTS: Final = 1 << 10
"""Elements per tensor up to which to put them into one is faster than the fused norm."""

_COLUMNS: Final = frozenset({L2, NANS, INFS})
_DTYPES: Final = frozenset({torch.float32, torch.bfloat16, torch.float16})


def is_small(gradients: Sequence[Tensor], columns: Sequence[str]) -> bool:
    """Tell whether these tensors and columns are for this path."""
    return (
        _COLUMNS.issuperset(columns)
        and sum(map(Tensor.numel, gradients)) <= MAX_ELEMENTS
        and _DTYPES.issuperset(map(attrgetter("dtype"), gradients))
    )


def small_statistics(gradients: Sequence[Tensor], columns: Sequence[str]) -> dict[str, Tensor]:
    """Return each column, (gradients,) float64; see `statistics`.

    Raises:
        ValueError: If a column is none of `l2`, `nans`, `infs`.
        AttributeError: If torch has the fused norm no more.
        RuntimeError: If it refuses the tensors.
    """
    if unknown := [name for name in columns if name not in _COLUMNS]:
        msg = f"columns: l2, nans and infs, got {unknown[0]!r}"
        raise ValueError(msg)
    norms = _norms(gradients)
    values = {L2: norms}
    if len(columns) > 1 or L2 not in columns:
        values[NANS], values[INFS] = norms.new_zeros(2, len(norms))
        # The tensors are on the CPU: to look at a number waits for nothing.
        if not math.isfinite(norms.sum().item()):
            for place in (~norms.isfinite()).nonzero().flatten().tolist():
                values[NANS][place], values[INFS][place] = count_nonfinite(gradients[place])
    return {name: values[name] for name in columns}


def _norms(gradients: Sequence[Tensor]) -> Tensor:
    """Return (gradients,) float64."""
    sizes = tuple(map(Tensor.numel, gradients))
    dtype = gradients[0].dtype
    is_tiny = 0 < sum(sizes) <= MAX_MEAN_ELEMENTS * len(sizes)
    if not is_tiny or any(gradient.dtype is not dtype for gradient in gradients):
        return torch.stack(torch._foreach_norm(list(gradients), 2.0, dtype=torch.float64))
    # A copy in float64: it may be written to.
    squares = _flatten_dense_tensors(gradients).to(torch.float64).square_()
    return torch.segment_reduce(squares, "sum", lengths=_lengths(sizes), unsafe=True).sqrt_()


@lru_cache(maxsize=64)
def _lengths(sizes: tuple[int, ...]) -> Tensor:
    """Return the sizes as a tensor; those of a model are the same in each step."""
    return torch.tensor(sizes, dtype=torch.int64, device="cpu")
