"""Collections on their way from the training thread to the sender thread, oldest first."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, Protocol

from gradwatch_wire import Manifest, Record

MAX_COLLECTIONS: Final = 1_024
"""Collections that wait for their numbers, in pinned memory on CUDA: 7 MB for 148 layers with six
columns. Beyond it the oldest is dropped and counted."""


class Collected(Protocol):
    """Something collected whose numbers may still be on their way from the device.

    `manifests`, where there are any, have to be sent even if its numbers are dropped.
    """

    step: int
    time_ns: int
    manifests: list[Manifest]

    def ready(self) -> bool:
        """Tell whether `records` may be called; never waits."""

    def records(self) -> list[Record]:
        """Return the records made of it."""


class CollectionQueue:
    """A queue that is bounded in number; when it is full, the oldest collection is dropped."""

    def __init__(self) -> None:
        self.num_dropped = 0
        # Held by either thread for a few list operations, never across I/O.
        self._lock = threading.Lock()
        self._waiting: deque[Collected] = deque()
        self._num_lost = 0  # dropped since the last one that was taken

    def __len__(self) -> int:
        """Number of collections that wait."""
        return len(self._waiting)

    def put(self, collected: Collected) -> bool:
        """Append a collection; return False if the oldest was dropped for it."""
        with self._lock:
            self._waiting.append(collected)
            if len(self._waiting) <= MAX_COLLECTIONS:
                return True
            oldest = self._waiting.popleft()
            self._waiting[0].manifests[:0] = oldest.manifests
            self._count_dropped(1)
            return False

    def take(self) -> tuple[int, Collected] | None:
        """Take the oldest collection if its numbers have arrived.

        Return with it the number of those that were dropped before it, after the one taken last.
        """
        with self._lock:
            if not self._waiting or not self._waiting[0].ready():
                return None
            return self._take_num_lost(), self._waiting.popleft()

    def drop_all(self) -> int:
        """Drop what waits; return the number of those dropped after the one taken last."""
        with self._lock:
            self._count_dropped(len(self._waiting))
            self._waiting.clear()
            return self._take_num_lost()

    def _count_dropped(self, count: int) -> None:
        self.num_dropped += count
        self._num_lost += count

    def _take_num_lost(self) -> int:
        num_lost, self._num_lost = self._num_lost, 0
        return num_lost
