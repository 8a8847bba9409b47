"""Numbers that lie on several devices: which are where, and those of one device put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

import torch
from torch import Tensor

SUPPORTED: Final = frozenset({"cpu", "cuda", "meta"})
"""Types of devices on which gradients can be measured, or are left out; `cuda` is ROCm as well."""


def why_unsupported(device: torch.device) -> str:
    """Return why nothing on a device is measured, to be put behind its name; else nothing."""
    if device.type in SUPPORTED:
        return ""
    why = "; mps has no float64, in which norms are added up" if device.type == "mps" else ""
    return f"gradients are measured on cpu and cuda (NVIDIA, and ROCm) only{why}"


def places_by_device(tensors: Sequence[Tensor]) -> dict[torch.device, list[int]]:
    # Nearly always there is one, and this runs in each step.
    if tensors and all(map(attrgetter("is_cpu"), tensors)):
        return {tensors[0].device: list(range(len(tensors)))}
    places: defaultdict[torch.device, list[int]] = defaultdict(list)
    for place, tensor in enumerate(tensors):
        places[tensor.device].append(place)
    return dict(places)


def meet(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return two tensors on one device, an accelerator if either is on one; never wait.

    Work on the CPU does not wait for a copy that is still on its way there; work on an accelerator
    does.
    """
    if one.device == other.device:
        return one, other
    if one.device.type == "cpu":
        return one.to(other.device, non_blocking=True), other
    return one, other.to(one.device, non_blocking=True)


def pack(values: Sequence[Tensor]) -> Tensor:
    """Put 0-d and 1-d tensors of one device into one (numbers,) float64 tensor, a copy."""
    dtype = values[0].dtype
    if dtype is not torch.float64 and all(value.dtype is dtype for value in values):
        # One conversion for all.
        return torch.cat([value.detach().reshape(-1) for value in values]).to(torch.float64)
    return torch.cat([value if _is_ready(value) else _flat(value) for value in values])


def _is_ready(value: Tensor) -> bool:
    """Tell whether it is 1-d in float64 and outside of any graph, as most are in each step."""
    return value.dtype is torch.float64 and value.dim() == 1 and not value.requires_grad


def _flat(value: Tensor) -> Tensor:
    return value.detach().reshape(-1).to(torch.float64)
