"""Forward order of the layers, seen from the first backward pass that reaches each.

Gradients become ready last layer first, so the reverse of that order is the order of the forward
pass. Hooks on the parameters note it once and are removed; nothing is registered on modules,
which would break compiled graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gradwatch._layers.layers import Layer


class ForwardOrder:
    """Watches backward passes until `close`."""

    def __init__(self, layers: Sequence[Layer], *, compiled: bool) -> None:
        self._num_layers = len(layers)
        self._ready: dict[int, int] = {}  # layer index -> how many were ready before it
        self._handles: list[RemovableHandle] = []
        # A compiled backward hands over all gradients at once, in no order that tells.
        if not compiled:
            self._handles = [
                self._watch(index, layer.parameter)
                for index, layer in enumerate(layers)
                if layer.parameter.requires_grad
            ]

    def _watch(self, index: int, parameter: nn.Parameter) -> RemovableHandle:
        def note(_: Tensor) -> None:
            self._ready.setdefault(index, len(self._ready))

        handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(note)
        return handle

    @property
    def is_watching(self) -> bool:
        """Whether a backward pass may still show more."""
        return bool(self._handles)

    def settle(self) -> tuple[list[int], frozenset[int]]:
        """Return all layer indices in forward order, and those whose place in it was seen.

        The others stand before the first that was registered after them.
        """
        seen = sorted(self._ready, key=self._ready.__getitem__, reverse=True)
        order: list[int] = []
        unseen = [index for index in range(self._num_layers) if index not in self._ready]
        for index in seen:
            while unseen and unseen[0] < index:
                order.append(unseen.pop(0))
            order.append(index)
        return order + unseen, frozenset(seen)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
