"""Local norms: each layer's gradient on this rank alone, before the ranks are reduced.

Asked for with `attach(local=True)`. The hook on a parameter runs when its gradient has been
accumulated and before DDP averages it, so that a bad rank has a name, a size and a layer. Of a
parameter that is a DTensor nothing is known: its gradient is there only after the reduction.

No norm means one of two things. Where the hook was in place and did not run, no backward pass of
this rank reached the layer: it got nothing here, zero. Where it was not in place (a parameter that
was unfrozen or replaced since), or ran and could not measure, nothing is known: `UNKNOWN`.
So it is after a CUDA graph capture, whose replays reach layers and run no hook.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from gradwatch._faults import Faults
from gradwatch._hooks.own_gradient import OwnGradientHook
from gradwatch._layers.layers import Layer
from gradwatch._recording.observer import Observer
from gradwatch._recording.step_sample import StepSample
from gradwatch._statistics.capture import in_capture
from gradwatch._statistics.gradients import is_distributed
from gradwatch._statistics.norm_slots import Expected, NormSlots
from gradwatch._statistics.single import measure_norm
from gradwatch._statistics.slots import Slot
from gradwatch_wire.columns import LOCAL_L2, UNKNOWN
from gradwatch_wire.names import Scalar

SHARDED: Final = (
    "attach(local=True) knows nothing of {name} and other DTensors: their gradients are there only "
    "after the reduction over ranks"
)


class LocalNorms(Observer):
    """L2 norms of what backward passes of this rank add, the largest of each layer.

    Args:
        faults: Where errors are noted; nothing is raised into the backward pass.
    """

    names_rank = True

    def __init__(self, layers: Sequence[Layer], faults: Faults) -> None:
        self._layers = layers
        self._faults = faults
        self._is_active = True
        self._is_captured = False
        self._norms = NormSlots(_expected(layer.parameter) for layer in layers)
        self._unmeasured: set[int] = set()  # layers that were reached, or may have been
        self._sharded: set[int] = set()
        self._hooks: dict[int, _Hook] = {}
        for index, layer in enumerate(layers):
            self._watch(index, layer.parameter)
        if self._sharded:
            why = SHARDED.format(name=layers[min(self._sharded)].name)
            faults.note("local norms of shards", why)

    def _watch(self, index: int, parameter: nn.Parameter) -> None:
        if (known := self._hooks.pop(index, None)) is not None:
            known.own.remove()
        if is_distributed(parameter):
            self._sharded.add(index)
            return
        self._sharded.discard(index)
        if not parameter.requires_grad:
            return

        # Held weakly by the hook: it holds the layers, and these their parameters.
        watch = weakref.ref(self)

        def current() -> nn.Parameter | None:
            own = watch()
            return None if own is None else own._layers[index].parameter

        def measure(gradient: Tensor) -> Slot | None:
            own = watch()
            return None if own is None else own._measure(index, gradient)

        def keep(norm: Slot, adds: bool) -> None:
            if (own := watch()) is not None:
                (own._norms.keep_larger if adds else own._norms.keep)(index, norm)

        hook = OwnGradientHook(parameter, current, measure, keep)
        self._hooks[index] = _Hook(hook, id(parameter), parameter._cdata)
        hook.activate(active=self._is_active)

    @property
    def active(self) -> bool:
        """Announcement: true if the next backward pass belongs to a step that will be collected."""
        return self._is_active

    @active.setter
    def active(self, active: bool) -> None:
        if active != self._is_active:
            self._is_active = active
            if not active:  # nothing shows whether a later pass reaches a layer as well
                self._norms.clear()
            for index in self._hooks:
                self._hooks[index].own.activate(active=active)

    def _measure(self, index: int, gradient: Tensor) -> Slot | None:
        self._unmeasured.add(index)
        try:
            if not in_capture(self._faults):
                return measure_norm(gradient, self._norms, index)
            self._is_captured = True
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("local norm", repr(error))
        self._norms.drop(index)
        return None

    def contribute(self, sample: StepSample) -> None:
        """Add the norm of each of the sample's layers, and forget them.

        The largest of them is the sample's probe: in a record of several steps it says which were
        bad here. Those of other layers wait for the sample of the optimizer that trains them.
        """
        norms = self._norms.take(sample.layers)
        missed = {i for i in sample.layers if i not in norms and not self._is_unreached(i)}
        self._unmeasured.difference_update(sample.layers)
        if not self._sharded.issuperset(sample.layers):
            self._add_column(sample, norms, missed)
        for index in missed - self._sharded:
            self._watch_again(index)

    def _add_column(self, sample: StepSample, norms: dict[int, Tensor], missed: set[int]) -> None:
        for device, places in sample.places.items():
            zero = torch.zeros(1, dtype=torch.float64, device=device)
            gaps = {False: zero, True: zero + UNKNOWN}
            mine = [sample.layers[place] for place in places]
            own = torch.cat([norms[i] if i in norms else gaps[i in missed] for i in mine])
            sample.columns[device][LOCAL_L2] = own
            if not missed.issuperset(mine):
                sample.device_scalars.setdefault(Scalar.LOCAL_PROBE, []).append(own.amax())
        if Scalar.LOSS_SCALE in sample.device_scalars:
            # They carry it, whatever was unscaled since.
            sample.scaled |= {LOCAL_L2, Scalar.LOCAL_PROBE}

    def _is_unreached(self, index: int) -> bool:
        """Tell whether a layer's hook has been in place all the time, and did not run."""
        if not self._is_active:
            return False
        hook = self._hooks.get(index)
        parameter = self._layers[index].parameter
        is_in_place = hook is not None and hook.is_on(parameter)
        return is_in_place and index not in self._unmeasured and not self._is_captured

    def _watch_again(self, index: int) -> None:
        """Hook a layer's parameter if it is not hooked: it was unfrozen."""
        hook, layer = self._hooks.get(index), self._layers[index]
        if hook is None:
            self._watch(index, layer.parameter)
        elif not hook.is_on(layer.parameter):
            # A parameter loses its hooks with its tensor, and takes no new ones after that.
            why = f"the tensor of {layer.name} was swapped for another one: known no more"
            self._faults.note("local norm", why)

    def follow(self, index: int, parameter: nn.Parameter) -> None:
        """Measure a parameter that has taken a layer's place, or is a new layer."""
        self._watch(index, parameter)
        self._unmeasured.add(index)  # by the pass that has just ended

    def forget(self) -> None:
        self._norms.clear()
        self._unmeasured.clear()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks.values():
            hook.own.remove()
        self._hooks.clear()


def _expected(parameter: nn.Parameter) -> Expected:
    if is_distributed(parameter):
        return Expected(parameter.device, num_bytes=1)  # of which nothing is measured
    num_bytes = max(parameter.numel() * parameter.dtype.itemsize, 1)
    return Expected(parameter.device, (parameter.dtype,), num_bytes)


@dataclass(frozen=True, slots=True)
class _Hook:
    """A hook, and what it was put on.

    Args:
        parameter: `id` of the parameter.
        tensor: Address of the tensor in it: `torch.utils.swap_tensors` exchanges that.
    """

    own: OwnGradientHook
    parameter: int
    tensor: int

    def is_on(self, parameter: nn.Parameter) -> bool:
        return (self.parameter, self.tensor) == (id(parameter), parameter._cdata)
