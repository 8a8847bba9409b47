"""Local norms: each layer's gradient on this rank alone, before the ranks are reduced.

Asked for with `attach(local=True)`. The hook on a parameter runs when its gradient has been
accumulated and before DDP averages it, so that a bad rank has a name, a size and a layer. Of a
parameter that is a DTensor nothing is known: its gradient is there only after the reduction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from gradwatch._faults import Faults
from gradwatch._hooks.own_gradient import OwnGradientHook
from gradwatch._layers.layers import Layer
from gradwatch._recording.observer import Observer
from gradwatch._recording.step_sample import StepSample
from gradwatch._statistics.gradients import dense, is_distributed
from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import L2, LOCAL_L2, UNKNOWN
from gradwatch_wire.names import Scalar

SHARDED: Final = (
    "attach(local=True) knows nothing of {name} and other DTensors: their gradients are there only "
    "after the reduction over ranks"
)


class LocalNorms(Observer):
    """L2 norms of what backward passes of this rank add, the largest of each layer."""

    def __init__(self, layers: Sequence[Layer], faults: Faults) -> None:
        self._faults = faults
        self._norms: dict[int, Tensor] = {}
        self._sharded: set[int] = set()
        self._hooks: list[OwnGradientHook] = []
        for index, layer in enumerate(layers):
            self._watch(index, layer.parameter)
        if self._sharded:
            why = SHARDED.format(name=layers[min(self._sharded)].name)
            faults.note("local norms of shards", why)

    def _watch(self, index: int, parameter: nn.Parameter) -> None:
        if is_distributed(parameter):
            self._sharded.add(index)
            return
        self._sharded.discard(index)
        if not parameter.requires_grad:
            return

        def measure(gradient: Tensor) -> Tensor | None:
            if not self.active:
                return None
            try:
                return statistics([dense(gradient)]).values[L2]
            except Exception as error:  # noqa: BLE001 - nothing may be raised into training
                self._faults.note("local norm", repr(error))
                return None

        def keep(norm: Tensor, adds: bool) -> None:
            known = self._norms.get(index) if adds else None
            self._norms[index] = norm if known is None else torch.maximum(known, norm)

        self._hooks.append(OwnGradientHook(parameter, measure, keep))

    def contribute(self, sample: StepSample) -> None:
        """Add the norm of each of the sample's layers, and forget all.

        A layer that no backward pass of this rank reached got nothing from it: zero. The largest of
        all is the sample's probe: in a record of several steps it says which were bad here.
        """
        norms, self._norms = self._norms, {}
        if self._sharded.issuperset(sample.layers):
            return
        for device, places in sample.places.items():
            zero = torch.zeros(1, dtype=torch.float64, device=device)
            own = torch.cat([norms.get(sample.layers[place], zero) for place in places])
            # They carry the loss scale, whatever was unscaled since.
            for scale in sample.device_scalars.get(Scalar.LOSS_SCALE, ()):
                own = own / scale.to(device)
            for number, place in enumerate(places if self._sharded else ()):
                if sample.layers[place] in self._sharded:
                    own[number] = UNKNOWN
            sample.columns[device][LOCAL_L2] = own
            sample.device_scalars.setdefault(Scalar.LOCAL_PROBE, []).append(own.amax())

    def follow(self, index: int, parameter: nn.Parameter) -> None:
        """Measure a parameter that has taken a layer's place, or is a new layer."""
        self._watch(index, parameter)

    def forget(self) -> None:
        """Drop the norms."""
        self._norms.clear()

    def close(self) -> None:
        """Remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
