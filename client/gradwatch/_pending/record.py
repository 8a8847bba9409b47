"""A record whose numbers are still on their way to the host."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from gradwatch._pending.numbers import Values
from gradwatch_wire import Manifest, Record


class PendingRecord(ABC):
    """Made in the training thread; the sender makes the record of it once the numbers are there.

    Args:
        manifests: What has to be sent before it, even if its own numbers are lost.

    Attributes:
        is_lost: Whether its numbers never come: there was no room for them.
    """

    def __init__(self, step: int, values: Values, manifests: Iterable[Manifest] = ()) -> None:
        self.step = step
        self.time_ns = time.time_ns()
        self.manifests = list(manifests)
        self.is_lost = values.is_lost
        self._values = values

    def ready(self) -> bool:
        """Tell whether nothing has to be waited for; never waits."""
        return self.is_lost or self._values.ready()

    def records(self) -> list[Record]:
        """Return the manifests that have to come first, and the record; only once `ready`."""
        return [*self.manifests, *(() if self.is_lost else self._make(self._values.read()))]

    @abstractmethod
    def _make(self, values: Sequence[Sequence[float]]) -> Sequence[Record]:
        """Return the records; none if the numbers show that there is nothing to tell."""
