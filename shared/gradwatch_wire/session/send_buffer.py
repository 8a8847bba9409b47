"""Records that wait for their acknowledgement, oldest first, bounded in bytes."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass

from gradwatch_wire.records import Kind


@dataclass(frozen=True, slots=True)
class BufferedRecord:
    """A packed record with its place in the session."""

    seq: int
    kind: Kind
    time_ns: int
    body: bytes


class SendBuffer:
    """A queue in the order of sequence numbers; when it is full, the oldest are evicted.

    What is evicted leaves a gap: its number is never given to another record, or the loss of
    one that the aggregator never saw would be hidden.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._items: OrderedDict[int, BufferedRecord] = OrderedDict()  # by number
        self._next_seq = 1

    def __len__(self) -> int:
        return len(self._items)

    @property
    def low(self) -> int:
        """The lowest sequence number that can still be supplied."""
        return next(iter(self._items), self._next_seq)

    @property
    def high(self) -> int:
        """The highest sequence number that waits, 0 if none does."""
        return next(reversed(self._items), 0)

    @property
    def last(self) -> int:
        """The last sequence number given out, 0 before the first."""
        return self._next_seq - 1

    def append(self, kind: Kind, time_ns: int, body: bytes) -> int:
        """Number a record and keep it; return how many were evicted for it.

        Manifests stay, for without them no later record could be read. Where they would fill half
        of the buffer, the oldest of them go too.
        """
        kept: deque[BufferedRecord] = deque()
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
        self._push(BufferedRecord(self._next_seq, kind, time_ns, body))
        self._next_seq += 1
        for item in reversed(kept):
            self.put_back(item)
        return num_evicted

    def skip(self, count: int) -> None:
        """Use up numbers without records: they count as lost."""
        self._next_seq += count

    def put_back(self, item: BufferedRecord) -> bool:
        """Put a record that was here before all others again; False if one of its number waits."""
        if item.seq >= self.low:
            return False
        self._push(item)
        self._items.move_to_end(item.seq, last=False)
        return True

    def release(self, acked: int) -> int:
        """Forget all up to *acked*; return how many those were."""
        before = len(self._items)
        while self._items and self.low <= acked:
            self._pop()
        return before - len(self._items)

    def get(self, seq: int) -> BufferedRecord | None:
        """Return a record that waits, or None."""
        return self._items.get(seq)

    def _push(self, item: BufferedRecord) -> None:
        self._items[item.seq] = item
        self.size_bytes += len(item.body)

    def _pop(self) -> BufferedRecord:
        _, item = self._items.popitem(last=False)
        self.size_bytes -= len(item.body)
        return item
