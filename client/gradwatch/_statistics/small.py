"""The path for small models on the CPU: one fused norm in float64 for all tensors.

Below some size the machinery of the other paths costs more than the numbers. Every square of a
float32 or shorter lies inside float64's range, so the plain sum of squares is exact enough.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from gradwatch._statistics.gradients import count_nonfinite
from gradwatch_wire.columns import INFS, L2, NANS

MAX_ELEMENTS: Final = 1 << 17
"""Elements of all gradients together up to which this path is faster than rows in float32."""

_COLUMNS: Final = frozenset({L2, NANS, INFS})
_DTYPES: Final = frozenset({torch.float32, torch.bfloat16, torch.float16})


def is_small(gradients: Sequence[Tensor], columns: Sequence[str]) -> bool:
    """Tell whether these tensors and columns are for this path."""
    if not _COLUMNS.issuperset(columns):
        return False
    room = MAX_ELEMENTS
    for gradient in gradients:
        room -= gradient.numel()
        if room < 0 or gradient.dtype not in _DTYPES:
            return False
    return True


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
    norms = torch.stack(torch._foreach_norm(list(gradients), 2.0, dtype=torch.float64))
    values = {L2: norms}
    if len(columns) > 1 or L2 not in columns:
        values[NANS], values[INFS] = norms.new_zeros(2, len(norms))
        # The tensors are on the CPU: to look at a number waits for nothing.
        if not math.isfinite(norms.sum().item()):
            for place in (~norms.isfinite()).nonzero().flatten().tolist():
                values[NANS][place], values[INFS][place] = count_nonfinite(gradients[place])
    return {name: values[name] for name in columns}
