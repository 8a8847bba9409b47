"""The local probe: was this rank's own gradient non-finite, before a reduction spread it?

DDP averages the ranks' gradients, and one rank's NaN reaches all. A NaN in a backward pass flows
to every layer before it, so a few small parameters spread over the model see it too. The smallest
and the largest element of their gradients are found in the hook that runs when they are ready,
which is before DDP reduces them: unlike a sum they cannot overflow, and a NaN shows in both. That
costs some microseconds a step. A NaN that stays inside one large weight gradient escapes it; then
the rank is reported as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradwatch._faults import Faults
from gradwatch._layers.layers import Layer
from gradwatch._recording.observer import Observer
from gradwatch._recording.step_sample import StepSample
from gradwatch._statistics.devices import places_by_device
from gradwatch._statistics.gradients import is_distributed, why_unreadable
from gradwatch_wire.names import Scalar

MAX_PARAMETERS: Final = 16
MAX_NUMEL: Final = 1 << 18


class LocalProbe(Observer):
    """Whether a few local gradients of the last backward pass were finite.

    Args:
        layers: Those to choose from.
        faults: Where errors are noted; nothing is raised into the backward pass.
    """

    def __init__(self, layers: Sequence[Layer], faults: Faults) -> None:
        self._faults = faults
        self._extremes: dict[int, Sequence[Tensor]] = {}  # smallest and largest element, 0-d each
        self._handles = [
            self._watch(index, parameter) for index, parameter in enumerate(choose(layers))
        ]

    def _watch(self, index: int, parameter: nn.Parameter) -> RemovableHandle:
        def look(ready: Tensor) -> None:
            gradient = ready.grad
            if not self.active or gradient is None or gradient.is_sparse:
                return
            try:
                self._extremes[index] = torch.aminmax(gradient.detach())
            except Exception as error:  # noqa: BLE001 - nothing may be raised into training
                self._faults.note("local probe", repr(error))

        handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(look)
        return handle

    def contribute(self, sample: StepSample) -> None:
        """Add a number per device, 0-d: 0 if all was finite, else NaN; and forget what was seen."""
        seen = [extreme for pair in self._extremes.values() for extreme in pair]
        self._extremes.clear()
        if seen:
            sample.device_scalars[Scalar.LOCAL_PROBE] = [
                (torch.stack([seen[place] for place in places]) * 0.0).sum()
                for places in places_by_device(seen).values()
            ]

    def forget(self) -> None:
        """Drop what was seen."""
        self._extremes.clear()

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def choose(layers: Sequence[Layer]) -> list[nn.Parameter]:
    """Return at most 16 small parameters, evenly spread from the first layer to the last."""
    # A shard's gradient is there only once the ranks' gradients have been reduced.
    trained = [
        layer.parameter
        for layer in layers
        if layer.parameter.requires_grad
        and not is_distributed(layer.parameter)
        and not why_unreadable(layer.parameter)
    ]
    small = [parameter for parameter in trained if parameter.numel() <= MAX_NUMEL]
    small = small or sorted(trained, key=nn.Parameter.numel)[:1]
    if len(small) <= MAX_PARAMETERS:
        return small
    stride = (len(small) - 1) / (MAX_PARAMETERS - 1)
    return [small[round(number * stride)] for number in range(MAX_PARAMETERS)]
