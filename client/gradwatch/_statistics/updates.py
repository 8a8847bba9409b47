"""Sizes of updates: a sample of each weight is read before the optimizer steps, and after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors
from torch.nn import Parameter

from gradwatch._statistics.gradients import SMALL_DTYPES, dense, is_packed
from gradwatch._statistics.segments import are_small, norms_of, sums_of
from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import L2, UNCHANGED, UPDATE_RMS, WEIGHT_RMS, ZEROS

SAMPLE_SIZE: Final = 4096
"""Elements of a layer that are read: the size of its update is within 1 % then, in the median."""

MAX_SAMPLED: Final = 1 << 20
"""Elements that are read of all layers together: 4 MB before the step, and as many after it."""

MIN_SIZE: Final = 8
"""Elements of each layer that are read in any case."""

_DTYPES: Final = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


@dataclass(frozen=True, slots=True)
class WeightSample:
    """Elements of the weights of one device at one moment.

    Args:
        stored: Elements of each that are stored there, -1 of a weight that cannot be read.
        numbers: (elements,) of one weight after the other.
    """

    parameters: Sequence[Tensor]
    device: torch.device
    stored: tuple[int, ...]
    sizes: tuple[int, ...]
    numbers: Tensor


@torch.no_grad()
def take_sample(parameters: Sequence[Tensor], device: torch.device) -> WeightSample:
    """Copy elements of weights, in memory order, by a fixed stride; on a GPU enqueue it only.

    Of a shard as large a share of its elements is read as of the whole layer.
    """
    limit = _limit(len(parameters))
    stored, sizes, read = [], [], list[Tensor]()
    for parameter in parameters:
        own = parameter if type(parameter) is Parameter else _stored(parameter)
        if own is None or own.dtype not in _DTYPES or not is_packed(own):
            stored.append(-1)
            sizes.append(0)
            continue
        read.append(_sampled(own, parameter.numel(), limit))
        stored.append(own.numel())
        sizes.append(read[-1].numel())
    return WeightSample(parameters, device, tuple(stored), tuple(sizes), _copied(read, device))


@torch.no_grad()
def size_of_update(before: WeightSample) -> dict[str, Tensor]:
    """Return the columns of the update since a sample was taken, (weights,) float64 each.

    They are root mean squares over the whole layer, and the share of elements that did not change.
    Of a shard they are its part in these: the squares of the former add up, and the shares. Where
    nothing has changed, and no element that was read has a gradient, the share is NaN: it says
    nothing, as of an embedding whose rows were not used.

    Returns:
        The columns; none if the weights have got other sizes since, or none can be read.
    """
    after = take_sample(before.parameters, before.device)
    if after.stored != before.stored or not after.numbers.numel():
        return {}
    update = after.numbers - before.numbers
    norms, zeros = _norms_and_zeros(update, after)
    wholes = tuple([parameter.numel() for parameter in after.parameters])
    sizes, parts, factors = _shares(after.sizes, after.stored, wholes, after.device)
    rms = norms.view(2, -1) * factors
    unchanged = zeros * parts / sizes
    is_same = zeros == sizes
    if not _is_on_host(before.device) or is_same.any():
        unchanged.masked_fill_(is_same & ~_has_gradient(after), math.nan)
    return {UPDATE_RMS: rms[0], WEIGHT_RMS: rms[1], UNCHANGED: unchanged}


def _norms_and_zeros(update: Tensor, after: WeightSample) -> tuple[Tensor, Tensor]:
    """Return (2 weights,) norms of updates and weights, and (weights,) zeros of the updates."""
    sizes = after.sizes
    if _is_on_host(after.device) and update.dtype in SMALL_DTYPES and are_small(sizes):
        norms = torch.cat([norms_of(each, sizes) for each in (update, after.numbers)])
        return norms, sums_of(update.eq(0.0).to(torch.float64), sizes)
    both = [*update.split(sizes), *after.numbers.split(sizes)]
    found = statistics(both, (L2, ZEROS)).values
    return found[L2], found[ZEROS][: len(sizes)]


def _stored(tensor: Tensor) -> Tensor | None:
    """Return what this process stores of a tensor; None where that is not known."""
    try:
        return dense(tensor)
    except TypeError:
        return None


def _limit(count: int) -> int:
    return max(min(SAMPLE_SIZE, MAX_SAMPLED // count), MIN_SIZE)


@lru_cache(maxsize=1024)
def _stride(numel: int, limit: int) -> int:
    """Return a stride that leaves no more elements than the limit, in all columns of a matrix."""
    stride = -(-numel // limit)
    while stride > 1 and math.gcd(stride, numel) > 1:
        stride += 1
    return stride


def _sampled(stored: Tensor, whole: int, limit: int) -> Tensor:
    if whole <= limit:
        return stored
    stride = _stride(whole, limit)
    return stored.as_strided((-(-stored.numel() // stride),), (stride,))


def _copied(read: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return a copy of all elements, (elements,)."""
    if read and not _is_on_host(device):  # a launch for 128 flat tensors, one for each of others
        return torch.cat([each if each.dim() == 1 else _flat(each) for each in read])
    if len(read) > 1:  # a view of each small one would take as long as to copy it
        flat: Tensor = _flatten_dense_tensors(read)
        return flat
    # Of a single tensor that is no copy.
    return read[0].reshape(-1).clone() if read else torch.empty(0, device=device)


def _is_on_host(device: torch.device) -> bool:
    return device.type == "cpu"


def _flat(stored: Tensor) -> Tensor:
    """Return all elements as they lie in memory, (elements,); they are packed there."""
    return stored.as_strided((stored.numel(),), (1,))


@lru_cache(maxsize=16)
def _shares(
    sizes: tuple[int, ...], stored: tuple[int, ...], wholes: tuple[int, ...], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Return of each weight how many elements were read, its part, and the factor of its L2 norm.

    Returns:
        (weights,) float64 on the device each: the first at least 1; the others 0 of an empty
        shard, and NaN of a weight that cannot be read.
    """
    read = torch.tensor(sizes, dtype=torch.float64, device="cpu").clamp_(min=1.0)
    parts = torch.tensor(stored, dtype=torch.float64, device="cpu")
    parts.masked_fill_(parts < 0.0, math.nan)
    parts /= torch.tensor(wholes, dtype=torch.float64, device="cpu").clamp_(min=1.0)
    return read.to(device), parts.to(device), (parts / read).sqrt_().to(device)


def _has_gradient(sample: WeightSample) -> Tensor:
    """Return (weights,) whether any element that was read has a gradient that is not zero."""
    limit = _limit(len(sample.parameters))
    read = []
    for parameter, stored in zip(sample.parameters, sample.stored, strict=True):
        gradient = None if parameter.grad is None else _stored(parameter.grad)
        if gradient is None or gradient.numel() != stored or not is_packed(gradient):
            gradient = sample.numbers[:0]  # gone, or stored in another way
        read.append(_sampled(gradient, parameter.numel(), limit))
    sizes = [each.numel() for each in read]
    return statistics(_copied(read, sample.device).split(sizes), (L2,)).values[L2] != 0.0
