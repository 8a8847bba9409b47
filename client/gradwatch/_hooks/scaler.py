"""GradScaler: when it lets an optimizer step, and which steps it skipped.

`scaler.step(optimizer)` calls an ordinary optimizer only if nothing was non-finite: on the very
step that overflowed no hook of the optimizer runs. A fused optimizer is always called, with scaled
gradients, and skips by itself. So the scaler that the user gave to `attach` is the place to stand:
its `step` is wrapped on that one object, until the watch is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from gradwatch._recording.pending import PendingRecord
from gradwatch._recording.readback import Readback
from gradwatch_wire import Event
from gradwatch_wire.names import EventName


class PendingSkip(PendingRecord):
    """The EVENT of a skipped step; nothing if the scaler took the step after all.

    Args:
        step: The step.
        optimizer: Number of the optimizer that was skipped or not.
        found: For each device a 0-d tensor: whether a gradient was non-finite.
        scale: The loss scale, 0-d.
    """

    def __init__(self, step: int, optimizer: int, found: Sequence[Tensor], scale: Tensor) -> None:
        self._optimizer = optimizer
        # The scaler writes both anew at its update; a readback has copies.
        super().__init__(step, [Readback([each]) for each in (scale, *found)])

    def _make(self) -> Event | None:
        scale, *found = (number for each in self._readbacks for number in each.read())
        if not any(found):
            return None
        data = {"optimizer": self._optimizer, "loss_scale": scale}
        return Event(name=EventName.SKIPPED_STEP, step=self.step, data=data)


class GradScalerHook:
    """Calls back around `scaler.step`.

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

    def find_skip(self, step: int, number: int, optimizer: Optimizer) -> PendingSkip | None:
        """Start to find out whether the scaler has just skipped this step of an optimizer.

        Args:
            step: The step.
            number: The optimizer's.
            optimizer: The optimizer itself.

        Returns:
            What will know it; None if the scaler could not have skipped.
        """
        found = self._scaler._per_optimizer_states[id(optimizer)].get("found_inf_per_device")
        if not found or self._scaler._scale is None:
            return None
        return PendingSkip(step, number, list(found.values()), self._scaler._scale)
