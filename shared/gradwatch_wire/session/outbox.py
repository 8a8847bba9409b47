"""The records of this process: numbered here, and kept until they are acknowledged."""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

from gradwatch_wire.codec import encode_body
from gradwatch_wire.limits import MAX_MANIFESTS, MAX_RECORD_BYTES
from gradwatch_wire.records import Manifest, Record, Welcome
from gradwatch_wire.session.send_buffer import BufferedRecord, SendBuffer

_ENVELOPE_BYTES: Final = 64
"""At most so many are around a record's body."""


class Overflow(Protocol):
    """Second place of records, so that the send buffer may drop them."""

    def add(self, item: BufferedRecord) -> None:
        """Keep a record."""

    def find(self, seq: int) -> BufferedRecord | None:
        """Return the first record from number *seq* on, None if there is none."""

    def release(self, acked: int) -> None:
        """Forget all up to *acked*."""


class Outbox:
    """A source of records that grows: a send buffer, and with it whatever it overflows to."""

    def __init__(self, max_bytes: int, overflow: Overflow | None = None) -> None:
        self.buffer = SendBuffer(max_bytes)
        self.counters: Counter[str] = Counter()
        self.manifests: dict[int, BufferedRecord] = {}  # by id, in case the aggregator forgot them
        self._overflow = overflow
        self._max_record_bytes = MAX_RECORD_BYTES
        self._acked = 0

    @property
    def pending(self) -> int:
        return len(self.buffer)

    def append(self, record: Record, time_ns: int) -> bool:
        """Number a record and keep it until it is acknowledged or evicted.

        Return False if it is larger than the aggregator reads; then its number counts as lost.
        """
        kind, body = encode_body(record)
        if len(body) + _ENVELOPE_BYTES > self._max_record_bytes:
            self.counters["oversize"] += 1
            self.skip(1)
            return False
        self.counters["evicted"] += self.buffer.append(kind, time_ns, body)
        item = BufferedRecord(self.buffer.last, kind, time_ns, body)
        if isinstance(record, Manifest):
            self.manifests[record.manifest_id] = item
            if len(self.manifests) > MAX_MANIFESTS:
                del self.manifests[next(iter(self.manifests))]
        if self._overflow is not None:
            self._overflow.add(item)
        return True

    def skip(self, count: int) -> None:
        """Use up numbers without records, so that the aggregator declares these lost."""
        self.buffer.skip(count)

    def get(self, seq: int) -> BufferedRecord | None:
        """Return the record of a number, wherever it is kept."""
        item = self.buffer.get(seq)
        if item is None and self._overflow is not None and seq < self.buffer.high:
            item = self._overflow.find(seq)
        return item if item is not None and item.seq == seq else None

    def first_from(self, seq: int) -> BufferedRecord | None:
        """Return the first record from number *seq* on, where all before it is released."""
        first = self.buffer.get(self.buffer.low)
        if first is None or first.seq == seq or self._overflow is None:
            return first
        kept = self._overflow.find(seq)
        return kept if kept is not None and kept.seq < first.seq else first

    def release(self, acked: int) -> int:
        """Forget all up to *acked*, but no more than there is."""
        acked = min(acked, self.buffer.last)
        self._acked = max(self._acked, acked)
        self.counters["acked"] += self.buffer.release(acked)
        if self._overflow is not None:
            self._overflow.release(acked)
        return acked

    def resume(self, welcome: Welcome) -> int:
        """Go on after what the aggregator has; a new log is given the manifests again."""
        self._max_record_bytes = welcome.max_record_bytes
        if welcome.acked < self._acked:
            # It never saw the manifests that the old log acknowledged.
            for item in sorted(self.manifests.values(), key=_seq, reverse=True):
                if item.seq > welcome.acked:
                    self.buffer.put_back(item)
            self._acked = 0
        return self.release(welcome.acked)


def _seq(item: BufferedRecord) -> int:
    return item.seq
