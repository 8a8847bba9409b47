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
from gradwatch._statistics.gradients import dense
from gradwatch._statistics.statistics import statistics


class LocalNorms:
    """L2 norms of the local gradients of the last backward pass."""

    def __init__(self, layers: Sequence[Layer], faults: Faults) -> None:
        self.active = True
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
                self._norms[index] = statistics([dense(ready.grad)]).values["l2"]
            except Exception as error:  # noqa: BLE001 - nothing may be raised into training
                self._faults.note("local norm", repr(error))

        handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(measure)
        return handle

    def take(self, indices: Sequence[int], devices: Sequence[torch.device]) -> list[Tensor]:
        """Return the norm of each of those layers, (1,) float64, and forget all.

        A layer that no backward pass of this rank reached got nothing from it: zero.
        """
        norms, self._norms = self._norms, {}
        return [
            norms[index] if index in norms else torch.zeros(1, dtype=torch.float64, device=device)
            for index, device in zip(indices, devices, strict=True)
        ]

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
