"""Gradient that one backward pass of this rank adds to a parameter, before the reduction.

A gradient that was there before may hold what other ranks have put into it: with accumulation and
without `no_sync` every pass is reduced. Then what the pass adds is read before it is added; else
after, when hooks of the training script have changed it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle, unserializable_hook

from gradwatch._hooks.untraced import untraced

Numbers = TypeVar("Numbers")

_IDLE: Final[Callable[..., Any]] = unserializable_hook(partial(deque[Tensor](maxlen=0).append))
"""A hook that does nothing, in the place of one that is not needed: it returns None.

It runs without a frame of Python, which costs a tenth and which Dynamo would look at. That the hook
stays where it is among the others of its parameter keeps their order.
"""


class OwnGradientHook:
    """Reads each gradient of a parameter while it is active, until `remove`.

    None of the callables must raise.

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

        # Dynamo would trace the first one into the user's compiled function.
        own = unserializable_hook(untraced(before))
        self._hooks: list[tuple[RemovableHandle, Callable[..., Any]]] = [
            (parameter.register_hook(own), own),
            (parameter.register_post_accumulate_grad_hook(after), after),
        ]
        self._found = found

    def activate(self, *, active: bool) -> None:
        """Read gradients from here on, or do not; as cheap as if there were no hook then."""
        self._found.clear()
        for handle, hook in self._hooks:
            hooks = handle.hooks_dict_ref()
            if hooks is not None and handle.id in hooks:
                hooks[handle.id] = hook if active else _IDLE

    def remove(self) -> None:
        for handle, _ in self._hooks:
            handle.remove()
