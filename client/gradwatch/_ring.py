"""Records that wait for their acknowledgement, oldest first, bounded in bytes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gradwatch_wire import Kind


@dataclass(frozen=True, slots=True)
class Stored:
    """A packed record with its place in the session."""

    seq: int
    kind: Kind
    time_ns: int
    body: bytes


class Ring:
    """A queue of consecutive sequence numbers; when it is full, the oldest give way."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._items: deque[Stored] = deque()
        self._next_seq = 1

    def __len__(self) -> int:
        """Number of records that wait."""
        return len(self._items)

    @property
    def low(self) -> int:
        """The lowest sequence number that can still be supplied."""
        return self._items[0].seq if self._items else self._next_seq

    @property
    def last(self) -> int:
        """The last sequence number given out, 0 before the first."""
        return self._next_seq - 1

    def append(self, kind: Kind, time_ns: int, body: bytes) -> list[Stored]:
        """Number a record and keep it; return those that had to go for it."""
        evicted: list[Stored] = []
        while self._items and self.size_bytes + len(body) > self.max_bytes:
            evicted.append(self._pop())
        self._items.append(Stored(self._next_seq, kind, time_ns, body))
        self._next_seq += 1
        self.size_bytes += len(body)
        return evicted

    def release(self, acked: int) -> int:
        """Forget all up to *acked*; return how many those were."""
        before = len(self._items)
        while self._items and self._items[0].seq <= acked:
            self._pop()
        return before - len(self._items)

    def get(self, seq: int) -> Stored | None:
        """Return a record that waits, or None."""
        index = seq - self.low
        return self._items[index] if 0 <= index < len(self._items) else None

    def _pop(self) -> Stored:
        item = self._items.popleft()
        self.size_bytes -= len(item.body)
        return item
