"""The norm of one gradient, into memory that is there already: what hooks measure.

They run once for each layer, in the backward pass, and many small things must not each pay for the
machinery of the paths that measure many at once. On a GPU it is one launch, and another one for all
of them where they are taken. Where that kernel cannot be had it is torch's fused norm of one tensor
and a copy of its result.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from gradwatch._statistics.cuda import is_public_forced
from gradwatch._statistics.foreach import foreach_statistics, public_statistics
from gradwatch._statistics.gradients import dense
from gradwatch._statistics.norm_slots import NormSlots
from gradwatch._statistics.sentinel import MAX_ELEMENTS
from gradwatch._statistics.slots import Slot
from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import L2

_PLAIN: Final = frozenset({Tensor, nn.Parameter})
_QUICK: Final = frozenset({torch.float32, torch.bfloat16, torch.float16})
"""Types whose squares lie inside float64's range."""


def measure_norm(gradient: Tensor, slots: NormSlots, index: int) -> Slot:
    """Enqueue the L2 norm of a gradient on the current stream, exact as `statistics` says.

    Args:
        gradient: Of any kind that `dense` takes.

    Returns:
        Where it is.
    """
    own = dense(gradient)
    slot = slots.measure(index, own)
    if slot is None:
        slot = slots.spare(index, own.device)
        write_norm(own, slot.number)
    return slot


@torch.no_grad()
def write_norm(gradient: Tensor, slot: Tensor) -> None:
    """Enqueue the L2 norm of a gradient, exact as `statistics` says.

    Args:
        gradient: Of any kind that `dense` takes.
        slot: (1,) float64 on its device, where the norm is written.
    """
    own = dense(gradient)
    if _is_quick(own):
        try:
            slot.copy_(torch._foreach_norm([own], 2.0, dtype=torch.float64)[0])
        except (AttributeError, RuntimeError):  # private, and may go
            slot.copy_(public_statistics([own], (L2,))[L2])
    elif own.device.type == "cpu" or is_public_forced():
        slot.copy_(statistics([own]).values[L2])
    else:
        slot.copy_(foreach_statistics([own], (L2,))[L2])


def _is_quick(gradient: Tensor) -> bool:
    """Tell whether one fused norm in float64 is exact, and not slower than another path."""
    numel = gradient.numel()
    return (
        gradient.dtype in _QUICK
        and type(gradient) in _PLAIN
        and numel > 0
        and (numel <= MAX_ELEMENTS or gradient.device.type != "cpu")
        and not is_public_forced()
    )
