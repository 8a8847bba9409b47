"""The local probe: was this rank's own gradient non-finite, before a reduction spread it?

DDP averages the ranks' gradients, and one rank's NaN reaches all. A NaN in a backward pass flows
to every layer before it, so a few small parameters spread over the model see it too. Their
gradients are summed in the hook that runs when they are ready, which is before DDP reduces them.
That costs some microseconds a step. A NaN that stays inside one large weight gradient escapes it;
then the rank is reported as unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from gradwatch._hooks.own_gradient import OwnGradientHook
from gradwatch._layers.layers import Layer
from gradwatch._recording.observer import Observer
from gradwatch._recording.step_sample import StepSample
from gradwatch._statistics.gradients import is_distributed
from gradwatch_wire.names import Scalar

MAX_PARAMETERS: Final = 16
MAX_NUMEL: Final = 1 << 18


class LocalProbe(Observer):
    """Sums of what backward passes of this rank add to a few gradients."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._sums: dict[int, Tensor] = {}
        self._handles = [
            self._watch(index, parameter) for index, parameter in enumerate(choose(layers))
        ]

    def _watch(self, index: int, parameter: nn.Parameter) -> OwnGradientHook:
        def add_up(gradient: Tensor) -> Tensor | None:
            if not self.active or gradient.is_sparse:
                return None
            # In float64: a sum in a shorter type may overflow on finite gradients.
            return gradient.detach().sum(dtype=torch.float64)

        def keep(total: Tensor, adds: bool) -> None:
            known = self._sums.get(index) if adds else None
            self._sums[index] = total if known is None else known + total

        return OwnGradientHook(parameter, add_up, keep)

    def contribute(self, sample: StepSample) -> None:
        """Add the sums, 0-d each on its device, and forget them."""
        if self._sums:
            sample.device_scalars[Scalar.LOCAL_PROBE] = list(self._sums.values())
            self._sums.clear()

    def forget(self) -> None:
        """Drop the sums."""
        self._sums.clear()

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
        if layer.parameter.requires_grad and not is_distributed(layer.parameter)
    ]
    small = [parameter for parameter in trained if parameter.numel() <= MAX_NUMEL]
    small = small or sorted(trained, key=nn.Parameter.numel)[:1]
    if len(small) <= MAX_PARAMETERS:
        return small
    stride = (len(small) - 1) / (MAX_PARAMETERS - 1)
    return [small[round(number * stride)] for number in range(MAX_PARAMETERS)]
