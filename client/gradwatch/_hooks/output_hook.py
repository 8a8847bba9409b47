"""The forward hook that measures a module's output, also inside compiled graphs.

Compiled, it writes into a tensor of its own: nothing in Python changes from call to call, so that
blocks of one kind go on sharing one graph, and nothing breaks it.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any, Final, Protocol

import torch
from torch import Tensor, nn

from gradwatch._hooks.outputs import tensors_in

_is_exporting: Final = getattr(torch.compiler, "is_exporting", lambda: False)  # torch 2.4: none


class OutputListener(Protocol):
    """Measurement of outputs outside of compiled graphs."""

    def after_forward(self, index: int, output: object) -> None:
        """Measure what module number *index* has returned."""


class ModuleOutputs:
    """Findings of the hook of one module.

    Args:
        index: Number of the module.
        device: Where its outputs lie.
        listener: Held weakly: hooks must not keep the watch alive.

    Attributes:
        seen: (2,) float64: largest magnitude in compiled calls since it was zeroed, and how many
            calls these were.
    """

    def __init__(self, index: int, device: torch.device, listener: OutputListener) -> None:
        self.index = index
        self.seen = torch.zeros(2, dtype=torch.float64, device=device)
        from torch._dynamo import mark_static_address  # noqa: PLC0415 - takes a second to import

        # Otherwise a graph that writes into it could not be captured as a CUDA graph.
        mark_static_address(self.seen, guard=False)
        self.listener = weakref.ref(listener)


class OutputHook:
    """A forward hook of its own for each module: Dynamo guards on what hooks share."""

    def __init__(self, outputs: ModuleOutputs) -> None:
        self._outputs = outputs

    def __call__(self, module: nn.Module, _: object, output: object) -> None:
        if torch.compiler.is_compiling():
            # Constants while tracing. An exported program is to have nothing of ours in it.
            if module.training and torch.is_grad_enabled() and not _is_exporting():
                _measure(output, self._outputs.seen)
            return
        listener = self._outputs.listener()
        if listener is not None:
            listener.after_forward(self._outputs.index, output)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave in a copy or a pickle something that does nothing, and needs no gradwatch."""
        return getattr, (nullcontext(), "__exit__")


def is_measurable(tensor: Tensor) -> bool:
    """Tell whether a tensor has magnitudes: real floats, and more than none."""
    is_float = tensor.is_floating_point() and tensor.dtype.itemsize > 1
    return is_float and tensor.layout == torch.strided and tensor.numel() > 0


@torch.no_grad()
def _measure(output: object, seen: Tensor) -> None:
    """Write the largest magnitude in an output into *seen*, as a part of the graph."""
    was_measured = False
    for tensor in tensors_in(output):
        if not is_measurable(tensor):
            continue
        local = tensor.detach()
        if hasattr(local, "to_local"):
            local = local.to_local()
        if local.device == seen.device:
            low, high = torch.aminmax(local)
            largest = torch.maximum(-low, high).to(seen.dtype)
            seen[0].copy_(torch.maximum(seen[0], largest))
            was_measured = True
    if was_measured:
        seen[1].add_(1)
