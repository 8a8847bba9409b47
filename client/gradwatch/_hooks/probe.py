"""The local probe: was this rank's own gradient non-finite, before a reduction spread it?

DDP averages the ranks' gradients, and one rank's NaN reaches all. A NaN in a backward pass flows
to every layer before it, so a few small parameters spread over the model see it too. Their
gradients are summed in the hook that runs when they are ready, which is before DDP reduces them.
That costs some microseconds a step. A NaN that stays inside one large weight gradient escapes it;
then the rank is reported as unknown.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from gradwatch._faults import Faults
from gradwatch._hooks.own_gradient import OwnGradientHook
from gradwatch._layers.layers import Layer
from gradwatch._recording.observer import Observer
from gradwatch._recording.step_sample import StepSample
from gradwatch._statistics.capture import in_capture
from gradwatch._statistics.devices import places_by_device
from gradwatch._statistics.gradients import is_distributed, why_unreadable
from gradwatch._statistics.slots import Slot, Slots
from gradwatch_wire.names import Scalar

MAX_PARAMETERS: Final = 16
MAX_NUMEL: Final = 1 << 18


class LocalProbe(Observer):
    """Sums of what backward passes of this rank add to a few gradients.

    Args:
        faults: Where errors are noted; nothing is raised into the backward pass.
    """

    names_rank = True

    def __init__(self, layers: Sequence[Layer], faults: Faults) -> None:
        self._faults = faults
        self._is_active = True
        self._parameters = choose(layers)
        self._sums = Slots(parameter.device for parameter in self._parameters)
        numbers = {id(layer.parameter): index for index, layer in enumerate(layers)}
        self._layers = [numbers[id(parameter)] for parameter in self._parameters]
        self._hooks = [
            self._watch(index, parameter) for index, parameter in enumerate(self._parameters)
        ]

    def _watch(self, index: int, parameter: nn.Parameter) -> OwnGradientHook:
        # Held weakly by the hook: it holds the parameters.
        watch = weakref.ref(self)

        def current() -> nn.Parameter | None:
            own = watch()
            return None if own is None else own._parameters[index]

        def add_up(gradient: Tensor) -> Slot | None:
            own = watch()
            return None if own is None else own._add_up(index, gradient)

        def keep(total: Slot, adds: bool) -> None:
            if (own := watch()) is not None:
                own._sums.keep(index, total, torch.add if adds else None)

        return OwnGradientHook(parameter, current, add_up, keep)

    @property
    def active(self) -> bool:
        """Announcement: true if the next backward pass belongs to a step that will be collected."""
        return self._is_active

    @active.setter
    def active(self, active: bool) -> None:
        if active != self._is_active:
            self._is_active = active
            for hook in self._hooks:
                hook.activate(active=active)

    def _add_up(self, index: int, gradient: Tensor) -> Slot | None:
        try:
            if not in_capture(self._faults) and not gradient.is_sparse:
                total = self._sums.spare(index, gradient.device)
                write_sum(gradient.detach(), total[1])
                return total
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("local probe", repr(error))
        return None

    def contribute(self, sample: StepSample) -> None:
        """Add the sums of the sample's layers, one for each device, and forget them.

        Those of the others wait for the sample of the optimizer that trains them.
        """
        mine = set(sample.layers)
        own = [index for index, layer in enumerate(self._layers) if layer in mine]
        sums = list(self._sums.take(own).values())
        if sums:
            sample.device_scalars[Scalar.LOCAL_PROBE] = [
                torch.cat([sums[place] for place in places]).sum()
                for places in places_by_device(sums).values()
            ]

    def forget(self) -> None:
        self._sums.clear()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._parameters.clear()


def write_sum(gradient: Tensor, slot: Tensor) -> None:
    """Write a number that is finite exactly if all elements are, their sum, to a (1,) float64.

    In a shorter type the sum may overflow on finite gradients. That of a float64 gradient may in
    any type: in its place it is zero, or NaN if not all elements are finite.
    """
    if gradient.dtype is not torch.float64:
        slot.copy_(gradient.sum(dtype=torch.float64))
        return
    smallest, largest = torch.aminmax(gradient)  # a NaN is both
    slot.copy_(smallest * 0.0 + largest * 0.0)


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
