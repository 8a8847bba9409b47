"""Records without columns: a skipped step, the pace, and the manifest of a rank without layers."""

from __future__ import annotations

from collections.abc import Sequence

from gradwatch._pending.numbers import Values
from gradwatch._pending.record import PendingRecord
from gradwatch_wire import Column, Event, Manifest
from gradwatch_wire.names import EventName


class PendingSkip(PendingRecord):
    """The EVENT of a skipped step; nothing if it turns out that nothing was non-finite.

    Args:
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


class PendingPace(PendingRecord):
    """The EVENT that says how often is measured from a step on.

    Args:
        every: Steps from one that is measured in full to the next.
    """

    def __init__(self, step: int, every: int, text: str) -> None:
        self._event = Event(name=EventName.PACE, step=step, data={"every": every}, text=text)
        super().__init__(step, Values((), ()))

    def _make(self, values: Sequence[Sequence[float]]) -> list[Event]:  # noqa: ARG002 - none
        return [self._event]


class PendingManifest(PendingRecord):
    """The manifest of a rank without layers, for which no step waits.

    Args:
        step: The first step.
    """

    def __init__(self, step: int) -> None:
        super().__init__(step, Values((), ()))

    def _make(self, values: Sequence[Sequence[float]]) -> list[Manifest]:  # noqa: ARG002 - none
        return [Manifest(manifest_id=1, names=(), numel=Column.pack("<u8", []), dtypes=())]
