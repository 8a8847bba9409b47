"""Steps that a GradScaler skipped: what was found, on its way to the host."""

from __future__ import annotations

from collections.abc import Sequence

from gradwatch._pending.numbers import Values
from gradwatch._pending.record import PendingRecord
from gradwatch_wire import Event
from gradwatch_wire.names import EventName


class PendingSkip(PendingRecord):
    """The EVENT of a skipped step; nothing if it turns out that nothing was non-finite.

    Args:
        step: The step.
        optimizer: Number of the optimizer that was skipped or not.
        values: The loss scale; then, for each device, whether a gradient was non-finite.
    """

    def __init__(self, step: int, optimizer: int, values: Values) -> None:
        self._optimizer = optimizer
        super().__init__(step, values)

    def _make(self, values: Sequence[Sequence[float]]) -> list[Event]:
        (scale,), *found = values
        if not any(any(numbers) for numbers in found):
            return []
        data = {"optimizer": self._optimizer, "loss_scale": scale}
        return [Event(name=EventName.SKIPPED_STEP, step=self.step, data=data)]
