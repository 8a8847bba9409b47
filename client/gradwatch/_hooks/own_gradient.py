"""What one backward pass of this rank adds to a parameter's gradient, before the ranks are reduced.

A gradient that was there before may hold what other ranks have put into it: with accumulation and
without `no_sync` every pass is reduced. Then what the pass adds is read before it is added; else
after, when hooks of the training script have changed it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import unserializable_hook

Numbers = TypeVar("Numbers")


class OwnGradientHook:
    """Reads each gradient of a parameter, until `remove`. Both callables must not raise.

    Args:
        parameter: A plain one: the gradient of a DTensor is there only after a reduction.
        current: Returns it, None if another has taken its place. It must not be held by what this
            returns it from: a hook that holds its parameter is never freed. A weak reference to a
            parameter would make `torch.utils.swap_tensors` refuse it.
        read: Returns some numbers of a gradient, None if they are not wanted.
        keep: Takes them once the gradient was accumulated, and whether one was there before.
    """

    def __init__(
        self,
        parameter: nn.Parameter,
        current: Callable[[], nn.Parameter | None],
        read: Callable[[Tensor], Numbers | None],
        keep: Callable[[Numbers, bool], None],
    ) -> None:
        found: list[Numbers | None] = []  # of a pass that adds; `autograd.grad` leaves its own

        def before(gradient: Tensor) -> None:
            own = current()
            found.clear()
            if own is not None and own.grad is not None:
                # It has a graph with `create_graph=True` only.
                found.append(read(gradient.detach() if gradient.requires_grad else gradient))

        def after(ready: Tensor) -> None:
            adds = bool(found)
            if ready is not current():
                return  # `torch.utils.swap_tensors` leaves this hook with what was swapped out
            numbers = found.pop() if adds else None if ready.grad is None else read(ready.grad)
            if numbers is not None:
                keep(numbers, adds)

        self._handles = [
            # Dynamo would trace the first one into the user's compiled function.
            parameter.register_hook(unserializable_hook(torch.compiler.disable(before))),
            parameter.register_post_accumulate_grad_hook(after),
        ]

    def remove(self) -> None:
        """Remove it."""
        for handle in self._handles:
            handle.remove()
