"""The numbers: one function for the L2 norms of many gradients, exact for every finite input.

In float32 a plain norm overflows from 1.8e19 on, loses what is below 1e-19, and drifts by up to
2 % on a tensor of 40 million elements. Here CPU tensors are summed in short rows whose norms are
combined in float64, and the few tensors whose range float32 cannot hold are done again with
scaling. On CUDA the fused kernel accumulates in float64, which costs no extra pass over memory.

Norm = NaN exactly if an element is NaN, Inf exactly if none is NaN and one is Inf, zero exactly
if all are zero.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

ROW: Final = 1024
"""Elements summed in float32 before float64 takes over: error below 1e-6, measured."""

SHORT: Final = 8192
"""Up to this many elements one pass in float64 takes less time than rows."""

CHUNK: Final = 1 << 20
"""Elements converted to float64 at once by the exact path: 8 MB."""

_SAFE_PER_ELEMENT: Final = 1e-16
"""A float32 norm above this times sqrt(numel) lost less than 1e-6 to squares that underflow."""


COLUMNS: Final = ("l2", "l1", "linf", "zeros", "nans", "infs")
"""All that can be asked for, in the order of the wire."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Numbers of several gradients of one device.

    Args:
        values: Column to (gradients,) float64 on their device.
        path: Name of the path that ran.
    """

    values: dict[str, Tensor]
    path: str


def statistics(gradients: Sequence[Tensor], columns: Sequence[str] = ("l2",)) -> Statistics:
    """Return statistics of each gradient.

    Args:
        gradients: Dense real tensors of one device, of any shape and floating dtype.
        columns: Which of `COLUMNS`.
    """
    norms, path = l2_norms(gradients)
    values = {"l2": norms}
    flat = [g.detach().reshape(-1).double() for g in gradients]
    some = [f if f.numel() else f.new_zeros(1) for f in flat]
    values["l1"] = torch.stack([f.abs().sum() for f in flat])
    values["linf"] = torch.stack([f.abs().max() for f in some])
    values["zeros"] = torch.stack([(f == 0).sum().double() for f in flat])
    values["nans"] = torch.stack([f.isnan().sum().double() for f in flat])
    values["infs"] = torch.stack([f.isinf().sum().double() for f in flat])
    return Statistics({column: values[column] for column in columns}, path)


def l2_norms(gradients: Sequence[Tensor]) -> tuple[Tensor, str]:
    """Return the L2 norm of each gradient and the name of the path that ran.

    Args:
        gradients: Dense real tensors of one device, of any shape and floating dtype.

    Returns:
        (len(gradients),) float64 on their device, and `cuda_foreach` or `cpu_rows`.
    """
    if gradients[0].device.type == "cpu":
        return _cpu_norms(gradients), "cpu_rows"
    norms = torch._foreach_norm(list(gradients), 2, dtype=torch.float64)
    return torch.stack(norms), "cuda_foreach"


def count_nonfinite(gradient: Tensor) -> tuple[int, int]:
    """Return the numbers of NaN and of Inf elements of a CPU tensor."""
    nans = infs = 0
    for chunk in gradient.reshape(-1).split(CHUNK):
        nans += int(chunk.isnan().sum())
        infs += int(chunk.isinf().sum())
    return nans, infs


def _cpu_norms(gradients: Sequence[Tensor]) -> Tensor:
    short = [g for g in gradients if g.numel() <= SHORT]
    quick = iter(torch._foreach_norm(short, 2, dtype=torch.float64) if short else ())
    norms = torch.stack([next(quick) if g.numel() <= SHORT else _row_norm(g) for g in gradients])
    sizes = torch.tensor([g.numel() for g in gradients], dtype=torch.float64)
    suspect = ~(norms.isfinite() & (norms > sizes.sqrt() * _SAFE_PER_ELEMENT))
    for index in suspect.nonzero().flatten().tolist():
        norms[index] = _exact_norm(gradients[index])
    return norms


def _row_norm(gradient: Tensor) -> Tensor:
    flat = gradient.reshape(-1)
    rows, tail = divmod(flat.numel(), ROW)
    body = flat[: rows * ROW].view(rows, ROW)
    dtype = torch.promote_types(flat.dtype, torch.float32)
    norms = torch.linalg.vector_norm(body, dim=1, dtype=dtype)
    if tail:
        rest = torch.linalg.vector_norm(flat[rows * ROW :], dtype=dtype)
        norms = torch.cat([norms, rest[None]])
    total: Tensor = torch.linalg.vector_norm(norms, dtype=torch.float64)
    return total


def _exact_norm(gradient: Tensor) -> float:
    """Scale by the largest magnitude, so that no square leaves the range of float64."""
    if not gradient.numel():
        return 0.0
    chunks = gradient.reshape(-1).split(CHUNK)
    # Tensor.max, unlike Python's, lets a NaN through.
    largest = float(torch.stack([torch.linalg.vector_norm(c, math.inf) for c in chunks]).max())
    if largest == 0.0 or not math.isfinite(largest):
        return largest
    total = sum(
        float(torch.square(chunk.to(torch.float64, copy=True).div_(largest)).sum())
        for chunk in chunks
    )
    # A norm beyond the range of float64 is no sign of an Inf element.
    return min(largest * math.sqrt(total), sys.float_info.max)
