"""Collections on their way from the training thread to the sender thread, oldest first."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from typing import Final, Protocol

from gradwatch_wire import Manifest, Record

MAX_COLLECTIONS: Final = 1_024
"""Collections that wait for the sender. Beyond it the oldest is dropped and counted."""


class Collected(Protocol):
    """Something collected whose numbers may still be on their way from the device.

    `manifests`, where there are any, have to be sent even if its numbers are dropped, or if it
    `is_lost`: there was no room for them.
    """

    @property
    def step(self) -> int:
        """The step it was collected at."""

    time_ns: int
    manifests: list[Manifest]
    is_lost: bool

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
        return len(self._waiting)

    def put(self, collected: Collected) -> bool:
        """Append a collection; return False if its numbers or the oldest were dropped."""
        with self._lock:
            self._waiting.append(collected)
            self.num_dropped += collected.is_lost
            if len(self._waiting) <= MAX_COLLECTIONS:
                return not collected.is_lost
            oldest = self._waiting.popleft()
            self._waiting[0].manifests[:0] = oldest.manifests
            self._count_dropped([oldest])
            return False

    def take(self) -> tuple[int, Collected] | None:
        """Take the oldest collection if its numbers have arrived.

        Return with it the number of those that were dropped before it, after the one taken last.
        """
        while self._waiting:
            with self._lock:
                oldest = self._waiting[0] if self._waiting else None
            # Looked at without the lock, for which `put` would have to wait.
            if oldest is None or not oldest.ready():
                return None
            with self._lock:
                if self._waiting and self._waiting[0] is oldest:
                    return self._take_num_lost(), self._waiting.popleft()
        return None

    def drop_all(self) -> int:
        """Drop what waits; return the number of those dropped after the one taken last."""
        with self._lock:
            self._count_dropped(self._waiting)
            self._waiting.clear()
            return self._take_num_lost()

    def _count_dropped(self, dropped: Collection[Collected]) -> None:
        self.num_dropped += sum(not each.is_lost for each in dropped)  # those are counted already
        self._num_lost += len(dropped)

    def _take_num_lost(self) -> int:
        num_lost, self._num_lost = self._num_lost, 0
        return num_lost
