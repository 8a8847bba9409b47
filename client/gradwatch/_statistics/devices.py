"""Numbers that lie on several devices: which are where, and those of one device put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor


def places_by_device(tensors: Sequence[Tensor]) -> dict[torch.device, list[int]]:
    """Return each device with the places of its tensors in the sequence, in order."""
    places: defaultdict[torch.device, list[int]] = defaultdict(list)
    for place, tensor in enumerate(tensors):
        places[tensor.device].append(place)
    return dict(places)


def pack(values: Sequence[Tensor]) -> Tensor:
    """Put 0-d and 1-d tensors of one device into one (numbers,) float64 tensor, a copy."""
    return torch.cat([value.detach().reshape(-1).to(torch.float64) for value in values])
