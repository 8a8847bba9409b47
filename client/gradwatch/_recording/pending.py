"""A record whose numbers are still on their way to the host."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from gradwatch._recording.readback import Readback
from gradwatch_wire import Manifest, Record


class PendingRecord(ABC):
    """Made in the training thread; the sender makes the record of it once the numbers are there.

    Args:
        step: Optimizer step that the record belongs to.
        readbacks: The copies that have to arrive before.
        manifests: What has to be sent before it, even if its own numbers are dropped.
    """

    def __init__(
        self, step: int, readbacks: Sequence[Readback], manifests: Iterable[Manifest] = ()
    ) -> None:
        self.step = step
        self.time_ns = time.time_ns()
        self.manifests = list(manifests)
        self._readbacks = readbacks

    def ready(self) -> bool:
        """Tell whether all numbers have arrived; never waits."""
        return all(readback.ready() for readback in self._readbacks)

    def records(self) -> list[Record]:
        """Return the manifests that have to come first, and the record; only once `ready`."""
        return [*self.manifests, *self._make()]

    @abstractmethod
    def _make(self) -> Sequence[Record]:
        """Return the records; none if the numbers show that there is nothing to tell."""
