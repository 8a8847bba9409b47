"""Where an optimizer's `step` begins and ends, whoever calls it and however it is wrapped."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gradwatch._faults import Faults


class StepListener(Protocol):
    """What is told of an optimizer's steps."""

    def begin_step(self, optimizer: int, *, has_closure: bool, nested: Callable[[], bool]) -> None:
        """Note that `step` of an optimizer begins."""

    def end_step(self, optimizer: int) -> None:
        """Note that it has returned."""


class OptimizerSteps:
    """Hooks around `step` of each optimizer.

    Args:
        optimizers: Unwrapped ones; see `unwrapped`.
        listener: Told of their steps by number; held weakly.
        faults: Where errors are noted; nothing is raised into the step.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], listener: StepListener, faults: Faults
    ) -> None:
        self._listener: Callable[[], StepListener | None] = weakref.ref(listener)
        self._faults = faults
        self._handles: list[RemovableHandle] = []
        for number, optimizer in enumerate(optimizers):
            self._handles += self._around(number, optimizer)

    def disable(self) -> None:
        """Tell nobody from here on; the hooks stay."""
        self._listener = _nobody

    def close(self) -> None:
        """Remove the hooks."""
        self.disable()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _around(self, number: int, optimizer: Optimizer) -> list[RemovableHandle]:
        # The number is bound here: wrappers hand their inner optimizer to hooks, or themselves.
        def before(_: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            listener = self._listener()
            if listener is not None:
                with self._faults.noting("optimizer step"), torch.no_grad():
                    listener.begin_step(
                        number, has_closure=_has_closure(args, kwargs), nested=_is_nested
                    )

        def after(_: Optimizer, _args: object, _kwargs: object) -> None:
            listener = self._listener()
            if listener is not None:
                with self._faults.noting("optimizer step"), torch.no_grad():
                    listener.end_step(number)

        return [
            optimizer.register_step_pre_hook(torch.compiler.disable(before)),
            optimizer.register_step_post_hook(torch.compiler.disable(after)),
        ]


def _nobody() -> None:
    return None


def unwrapped(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer in the wrappers of Accelerate, Lightning and others."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = inner
    return optimizer


def _has_closure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    # args[0] is the optimizer itself.
    given = args[1] if len(args) > 1 else kwargs.get("closure")
    return callable(given)


def _is_nested() -> bool:
    """Tell whether the hook that asks runs within another `step` of the same optimizer.

    A subclass that calls `super().step()` runs the hooks twice, if its parent was ever
    instantiated. Asked only when a step seems to be running: that is also so after one raised.
    """
    frame = sys._getframe()
    running: list[object] = []
    while frame is not None:
        if frame.f_code.co_name == "wrapper" and "profile_hook_step" in frame.f_code.co_qualname:
            args = frame.f_locals.get("args")
            if args:
                running.append(args[0])
        frame = frame.f_back  # type: ignore[assignment]  # None at the end
    return len(running) > 1 and any(other is running[0] for other in running[1:])
