"""Local norms: each layer's gradient on this rank alone, before the ranks are reduced.

Asked for with `attach(local=True)`. The hook on a parameter runs when its gradient has been
accumulated and before DDP averages it, so that a bad rank has a name, a size and a layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradwatch._faults import Faults
from gradwatch._layers.layers import Layer
from gradwatch._recording.observer import Observer
from gradwatch._recording.step_sample import StepSample
from gradwatch._statistics.gradients import dense
from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import L2, LOCAL_L2
from gradwatch_wire.names import Scalar


class LocalNorms(Observer):
    """L2 norms of the local gradients of the last backward pass."""

    def __init__(self, layers: Sequence[Layer], faults: Faults) -> None:
        self._faults = faults
        self._norms: dict[int, Tensor] = {}
        self._handles = [
            self._watch(index, layer.parameter)
            for index, layer in enumerate(layers)
            if layer.parameter.requires_grad
        ]

    def _watch(self, index: int, parameter: nn.Parameter) -> RemovableHandle:
        def measure(ready: Tensor) -> None:
            if not self.active or ready.grad is None:
                return
            try:
                self._norms[index] = statistics([dense(ready.grad)]).values[L2]
            except Exception as error:  # noqa: BLE001 - nothing may be raised into training
                self._faults.note("local norm", repr(error))

        handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(measure)
        return handle

    def contribute(self, sample: StepSample) -> None:
        """Add the norm of each of the sample's layers, and forget all.

        A layer that no backward pass of this rank reached got nothing from it: zero.
        """
        norms, self._norms = self._norms, {}
        for device, places in sample.places.items():
            zero = torch.zeros(1, dtype=torch.float64, device=device)
            own = torch.cat([norms.get(sample.layers[place], zero) for place in places])
            # They carry the loss scale, whatever was unscaled since.
            for scale in sample.device_scalars.get(Scalar.LOSS_SCALE, ()):
                own = own / scale.to(device)
            sample.columns[device][LOCAL_L2] = own

    def follow(self, index: int, parameter: nn.Parameter) -> None:
        """Measure a parameter that has taken a layer's place, or is a new layer."""
        if parameter.requires_grad:
            self._handles.append(self._watch(index, parameter))

    def forget(self) -> None:
        """Drop the norms."""
        self._norms.clear()

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
