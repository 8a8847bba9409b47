"""The paths for any device and for compiled graphs: float64 accumulators, no branch on values.

Every square of a float32, float16 or bfloat16 lies inside float64's range, so that a sum of
squares in float64 is exact enough as it is. Those of a float64 do not: such tensors are divided by
their largest magnitude first, chunk by chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from gradwatch._statistics.gradients import chunks, count_nonfinite
from gradwatch_wire.columns import INFS, L1, L2, LINF, NANS, ZEROS

Norms = Callable[[Sequence[Tensor], float], Sequence[Tensor]]

_SHORT: Final = frozenset({2, 4})
"""Bytes of the types that torch's norms take, and whose squares lie inside float64's range."""

_NORM_CHUNK: Final = 65_536
"""Elements of a tensor that torch's fused norm reduces to one number first."""

_MAX_NORM_CHUNKS: Final = 1 << 21
"""Of such numbers, float64, in one of its temporaries: 16 MB."""


def foreach_statistics(gradients: Sequence[Tensor], columns: Sequence[str]) -> dict[str, Tensor]:
    """Return each column by torch's fused multi-tensor norm; see `statistics`.

    Raises:
        AttributeError: If torch has it no more.
        RuntimeError: If it refuses the tensors.
    """
    return _statistics(gradients, columns, _foreach_norms)


def public_statistics(gradients: Sequence[Tensor], columns: Sequence[str]) -> dict[str, Tensor]:
    """Return each column by public functions of torch only, tensor by tensor; see `statistics`."""
    return _statistics(gradients, columns, _public_norms)


def _foreach_norms(gradients: Sequence[Tensor], order: float) -> Sequence[Tensor]:
    norms: list[Tensor] = []
    for some in _batches(gradients):
        norms += torch._foreach_norm(some, order, dtype=torch.float64)
    return norms


def _batches(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Cut where torch's temporary would grow too large: it has room for each to be the largest."""
    if gradients[0].device.type == "cpu":  # which has none
        yield list(gradients)
        return
    batch: list[Tensor] = []
    most = 1
    for gradient in gradients:
        chunks = -(-gradient.numel() // _NORM_CHUNK)
        if batch and (len(batch) + 1) * max(most, chunks) > _MAX_NORM_CHUNKS:
            yield batch
            batch, most = [], 1
        batch.append(gradient)
        most = max(most, chunks)
    yield batch


def _public_norms(gradients: Sequence[Tensor], order: float) -> Sequence[Tensor]:
    return [torch.linalg.vector_norm(g, order, dtype=torch.float64) for g in gradients]


def _statistics(
    gradients: Sequence[Tensor], columns: Sequence[str], norms: Norms
) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    for name, order in ((L2, 2.0), (L1, 1.0), (LINF, math.inf)):
        if name in columns:
            values[name] = _norms(gradients, order, norms)
    if ZEROS in columns:
        values[ZEROS] = torch.stack([_count_zeros(gradient) for gradient in gradients])
    if {NANS, INFS} & set(columns):
        pairs = [count_nonfinite(gradient) for gradient in gradients]
        values[NANS] = torch.stack([nans for nans, _ in pairs])
        values[INFS] = torch.stack([infs for _, infs in pairs])
    return {name: values[name] for name in columns}


def _norms(gradients: Sequence[Tensor], order: float, norms: Norms) -> Tensor:
    """Return (gradients,) float64. The norm of an empty tensor is 0; torch raises for some."""
    short = [g for g in gradients if g.numel() and g.dtype.itemsize in _SHORT]
    quick = iter(norms(short, order) if short else ())
    zero = torch.zeros((), dtype=torch.float64, device=gradients[0].device)
    found = []
    for gradient in gradients:
        if not gradient.numel():
            found.append(zero)
        elif gradient.dtype.itemsize in _SHORT:
            found.append(next(quick))
        else:
            found.append(_scaled_norm(gradient, order))
    return torch.stack(found)


def _scaled_norm(gradient: Tensor, order: float) -> Tensor:
    """Return the norm of a tensor as 0-d float64: that of its multiples of the largest element."""
    # Cut anew for each sum: what lies in memory with gaps would be there as a whole copy.
    largest = torch.stack([part.double().abs().amax() for part in chunks(gradient)]).amax()
    if order == math.inf:
        return largest
    divisor = torch.where((largest > 0.0) & largest.isfinite(), largest, 1.0)
    scaled = torch.stack(
        [torch.linalg.vector_norm(part.double() / divisor, order) for part in chunks(gradient)]
    )
    total = torch.linalg.vector_norm(scaled, order) * divisor
    # A norm beyond the range of float64 is no sign of an Inf element.
    return torch.where(largest.isfinite(), total.clamp(max=torch.finfo(torch.float64).max), largest)


def _count_zeros(gradient: Tensor) -> Tensor:
    counts = [(chunk == 0).sum(dtype=torch.float64) for chunk in chunks(gradient)]
    return torch.stack(counts).sum()
