"""Steps that a GradScaler skipped: what was found, on its way to the host."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gradwatch._recording.pending import PendingRecord
from gradwatch._recording.readback import Readback
from gradwatch_wire import Event
from gradwatch_wire.names import EventName


class PendingSkip(PendingRecord):
    """The EVENT of a skipped step; nothing if it turns out that nothing was non-finite.

    Args:
        step: The step.
        optimizer: Number of the optimizer that was skipped or not.
        found: For each device a 0-d tensor: whether a gradient was non-finite.
        scale: The loss scale, 0-d.
    """

    def __init__(self, step: int, optimizer: int, found: Sequence[Tensor], scale: Tensor) -> None:
        self._optimizer = optimizer
        super().__init__(step, [Readback([each]) for each in (scale, *found)])

    def _make(self) -> list[Event]:
        scale, *found = (number for each in self._readbacks for number in each.read())
        if not any(found):
            return []
        data = {"optimizer": self._optimizer, "loss_scale": scale}
        return [Event(name=EventName.SKIPPED_STEP, step=self.step, data=data)]
