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

    def append(self, kind: Kind, time_ns: int, body: bytes) -> int:
        """Number a record and keep it; return how many had to go for it.

        Manifests stay, for without them no later record could be read: each takes the number of
        one that went. Where they would fill half of the ring, the oldest of them go too.
        """
        kept: deque[Stored] = deque()
        kept_bytes = num_evicted = 0
        while self._items and self.size_bytes + kept_bytes + len(body) > self.max_bytes:
            item = self._pop()
            if item.kind is Kind.MANIFEST:
                kept.append(item)
                kept_bytes += len(item.body)
            else:
                num_evicted += 1
        while kept_bytes * 2 > self.max_bytes:
            kept_bytes -= len(kept.popleft().body)
            num_evicted += 1
        self._push(Stored(self._next_seq, kind, time_ns, body))
        self._next_seq += 1
        for item in reversed(kept):
            self.put_back(item.kind, item.time_ns, item.body)
        return num_evicted

    def put_back(self, kind: Kind, time_ns: int, body: bytes) -> bool:
        """Put a record before all others, under the number just below; False if there is none.

        That number belonged to a record that gave way, or that a lost log had acknowledged. Where
        the aggregator has stored it after all, it has what came before it too, and this record is
        a duplicate.
        """
        seq = self.low - 1
        if seq < 1:
            return False
        self._items.appendleft(Stored(seq, kind, time_ns, body))
        self.size_bytes += len(body)
        return True

    def holds(self, body: bytes) -> bool:
        """Tell whether a manifest of these bytes waits."""
        return any(item.kind is Kind.MANIFEST and item.body == body for item in self._items)

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

    def _push(self, item: Stored) -> None:
        self._items.append(item)
        self.size_bytes += len(item.body)

    def _pop(self) -> Stored:
        item = self._items.popleft()
        self.size_bytes -= len(item.body)
        return item
