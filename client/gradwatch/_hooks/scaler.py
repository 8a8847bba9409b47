"""GradScaler: whether the gradients still carry the loss scale, and which steps were skipped.

`scaler.step(optimizer)` calls an ordinary optimizer only if nothing was non-finite: on the very
step that overflowed no hook of the optimizer runs. A fused optimizer is always called, with scaled
gradients, and skips by itself. So the scaler that the user gave to `attach` is the place to stand:
its `step` is wrapped on that one object, until the watch is closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from gradwatch._statistics.readback import Readback, pack
from gradwatch_wire import Event, Manifest, Record

SKIPPED_STEP = "skipped_step"


class SkipCheck:
    """Whether the scaler skipped one step, on its way to the host."""

    def __init__(self, step: int, optimizer: int, found: list[Tensor], scale: Tensor) -> None:
        self.step = step
        self.time_ns = time.time_ns()
        self.manifests: list[Manifest] = []
        self._optimizer = optimizer
        # The scaler writes both anew at its update; packed numbers are copies.
        self._readbacks = [Readback(pack([each])) for each in found]
        self._scale = Readback(pack([scale]))

    def ready(self) -> bool:
        """Tell whether it is known; never waits."""
        return self._scale.ready() and all(each.ready() for each in self._readbacks)

    def records(self) -> list[Record]:
        """Return an EVENT if the step was skipped, nothing if it was taken."""
        if not any(number for each in self._readbacks for number in each.read()):
            return [*self.manifests]
        data = {"optimizer": self._optimizer, "loss_scale": self._scale.read()[0]}
        return [*self.manifests, Event(name=SKIPPED_STEP, step=self.step, data=data)]


class GradScalerHook:
    """Stands around `scaler.step`.

    Args:
        scaler: The user's.
        before: Called with the optimizer before the scaler looks at it.
        after: Called with it after it stepped or was skipped.
    """

    def __init__(
        self,
        scaler: GradScaler,
        before: Callable[[Optimizer], None],
        after: Callable[[Optimizer], None],
    ) -> None:
        self._scaler = scaler
        original = scaler.step

        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            before(optimizer)
            try:
                return original(optimizer, *args, **kwargs)
            finally:
                after(optimizer)

        self._step = step
        scaler.step = step  # type: ignore[method-assign]  # on this object only

    def close(self) -> None:
        """Give the scaler its own method back."""
        if vars(self._scaler).get("step") is self._step:
            del self._scaler.step


def is_scaled(scaler: GradScaler, optimizer: Optimizer | None) -> bool:
    """Tell whether the gradients of *optimizer*, None for any, still carry the loss scale."""
    states = scaler._per_optimizer_states
    if optimizer is not None:
        states = {key: state for key, state in states.items() if key == id(optimizer)}
    return all(state["stage"].name == "READY" for state in states.values())


def check_skip(
    scaler: GradScaler, step: int, number: int, optimizer: Optimizer
) -> SkipCheck | None:
    """Start to find out whether the scaler has just skipped this step; None if it never could."""
    found = scaler._per_optimizer_states[id(optimizer)].get("found_inf_per_device")
    if not found or scaler._scale is None:
        return None
    return SkipCheck(step, number, list(found.values()), scaler._scale)
