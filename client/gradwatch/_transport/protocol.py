"""The client's side of the protocol: what to send next, what an answer means.

It has neither socket nor clock; the sender thread drives it and passes the time in.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Final
from typing import Protocol as Interface

from gradwatch._transport.send_buffer import BufferedRecord, SendBuffer
from gradwatch_wire import (
    Ack,
    Alert,
    Beat,
    Envelope,
    Hello,
    Json,
    Manifest,
    Record,
    Refuse,
    Welcome,
    encode,
    encode_body,
    join,
)
from gradwatch_wire.limits import MAX_MANIFESTS, MAX_RECORD_BYTES

HELLO_EVERY_S: Final = 1.0
BEAT_EVERY_S: Final = 2.0
ACK_TIMEOUT_S: Final = 5.0
"""Without any acknowledgement this long, the session is opened anew from what was acknowledged."""

MAX_IN_FLIGHT: Final = 256
"""Records sent and not acknowledged: what a crash of the aggregator makes us send again."""


class Phase(Enum):
    """Where the session stands."""

    GREETING = "greeting"
    OPEN = "open"
    REFUSED = "refused"


class Overflow(Interface):
    """Where records are kept too, so that the ring may forget them."""

    def add(self, item: BufferedRecord) -> None:
        """Keep a record."""

    def find(self, seq: int) -> BufferedRecord | None:
        """Return the first record from number *seq* on, None if there is none."""

    def release(self, acked: int) -> None:
        """Forget all up to *acked*."""


class Protocol:
    """One session: HELLO until WELCOME, then records in order until acknowledged."""

    def __init__(
        self, session: bytes, hello: Hello, max_bytes: int, overflow: Overflow | None = None
    ) -> None:
        self.phase = Phase.GREETING
        self.counters: Counter[str] = Counter()
        self.refused = ""
        self.alerts: list[dict[str, Json]] = []
        self._session = session
        self._hello = hello
        self._ring = SendBuffer(max_bytes)
        self._overflow = overflow
        self._manifests: dict[int, BufferedRecord] = {}  # by id, in case the aggregator forgot them
        self._max_record_bytes = MAX_RECORD_BYTES
        self._boot_id = b""
        self._acked = 0
        self._floor = 1  # all before is acknowledged, or cannot be supplied any more
        self._cursor = 1
        self._rewound: tuple[bytes, int] | None = None
        self._hello_at = float("-inf")
        self._beat_at = float("-inf")
        self._progress_at = float("-inf")

    @property
    def pending(self) -> int:
        """Records that wait for their acknowledgement."""
        return len(self._ring)

    @property
    def drained(self) -> bool:
        """Whether everything is acknowledged, or never will be."""
        return not self._ring or self.phase is Phase.REFUSED

    def append(self, record: Record, time_ns: int) -> bool:
        """Number a record and keep it until it is acknowledged or has to give way.

        Return False if it is larger than the aggregator reads; then its number counts as lost.
        """
        kind, body = encode_body(record)
        if len(body) + 64 > self._max_record_bytes:  # 64: the envelope around it
            self.counters["oversize"] += 1
            self.skip(1)
            return False
        self.counters["evicted"] += self._ring.append(kind, time_ns, body)
        item = BufferedRecord(self._ring.last, kind, time_ns, body)
        if isinstance(record, Manifest):
            self._manifests[record.manifest_id] = item
            if len(self._manifests) > MAX_MANIFESTS:
                del self._manifests[next(iter(self._manifests))]
        if self._overflow is not None:
            self._overflow.add(item)
        return True

    def skip(self, count: int) -> None:
        """Number records that will never be, so that the aggregator declares them lost."""
        self._ring.skip(count)

    def due(self, now_s: float) -> list[bytes] | None:
        """Return the HELLO that is due, if one is."""
        if self.phase is Phase.OPEN and self._is_stuck(now_s):
            self.phase = Phase.GREETING
        if self.phase is not Phase.GREETING or now_s - self._hello_at < HELLO_EVERY_S:
            return None
        return self._frames(self._hello)

    def greeted(self, now_s: float) -> None:
        """Say that the HELLO is with the socket."""
        self._hello_at = now_s

    def beat(self, last_step: int, since_s: float, now_s: float) -> list[bytes] | None:
        """Return the BEAT that is due, if one is."""
        if self.phase is not Phase.OPEN or now_s - self._beat_at < BEAT_EVERY_S:
            return None
        self._beat_at = now_s
        counters = dict(self.counters)
        return self._frames(Beat(last_step=last_step, since_s=since_s, counters=counters))

    def peek(self) -> list[bytes] | None:
        """Return the next record to send, if one may be sent; `sent` moves on."""
        if self.phase is not Phase.OPEN or self._cursor - self._floor >= MAX_IN_FLIGHT:
            return None
        item = self._supply(self._cursor)
        if item is None and self._cursor == self._floor <= self._ring.last:
            # Nobody can supply these numbers any more: go on behind them, and say so by `low`.
            item = self._supply_from(self._cursor)
            self._floor = self._cursor = self._ring.last + 1 if item is None else item.seq
        return None if item is None else self._join(item)

    def sent(self) -> None:
        """Say that what `peek` returned is with the socket."""
        self._cursor += 1
        self.counters["sent"] += 1

    def receive(self, envelope: Envelope, now_s: float) -> None:
        """Take in an answer of the aggregator."""
        if envelope.session != self._session or self.phase is Phase.REFUSED:
            return
        match envelope.record:
            case Welcome() as welcome:
                self._welcome(welcome, now_s)
            case Ack() as ack:
                self._acknowledge(ack, now_s)
            case Alert(alert=alert):
                self.alerts.append(dict(alert))
            case Refuse(reason=reason):
                self.phase = Phase.REFUSED
                self.refused = reason

    def _welcome(self, welcome: Welcome, now_s: float) -> None:
        if welcome.acked < self._acked:
            # A new log never saw the manifests that the old one acknowledged.
            for item in reversed(self._manifests.values()):
                if item.seq > welcome.acked:
                    self._ring.put_back(item)
        self.phase = Phase.OPEN
        self._boot_id = welcome.boot_id
        self._max_record_bytes = welcome.max_record_bytes
        self._acked = min(welcome.acked, self._ring.last)
        self._rewound = None
        self._progress_at = now_s
        self._release(self._acked)
        self._floor = self._cursor = self._acked + 1

    def _acknowledge(self, ack: Ack, now_s: float) -> None:
        if ack.boot_id != self._boot_id:
            # It restarted. HELLO at once, once: its WELCOME says from where to go on.
            if self.phase is Phase.OPEN:
                self.phase = Phase.GREETING
                self._hello_at = float("-inf")
            return
        acked = min(ack.acked, self._ring.last)  # whoever acknowledges more is mistaken
        if acked > self._acked:
            self._acked = acked
            self._progress_at = now_s
        self._release(acked)
        self._floor = max(self._floor, acked + 1)
        self._cursor = max(self._cursor, self._floor)
        where = (ack.boot_id, acked)
        if ack.rewind and self._rewound != where:
            # Once per place: more of the same answers are still on their way.
            self._rewound = where
            self._cursor = self._floor

    def _is_stuck(self, now_s: float) -> bool:
        if self._cursor == self._floor:
            self._progress_at = now_s
        return now_s - self._progress_at > ACK_TIMEOUT_S

    def _release(self, acked: int) -> None:
        self.counters["acked"] += self._ring.release(acked)
        if self._overflow is not None:
            self._overflow.release(acked)

    def _supply(self, seq: int) -> BufferedRecord | None:
        """Return the record of a number, wherever it is kept; None if nowhere."""
        item = self._ring.get(seq)
        if item is None and self._overflow is not None and seq < self._ring.last:
            item = self._overflow.find(seq)
        return item if item is not None and item.seq == seq else None

    def _supply_from(self, seq: int) -> BufferedRecord | None:
        """Return the first record from number *seq* on; the ring has none before it."""
        kept = None if self._overflow is None else self._overflow.find(seq)
        if kept is not None and kept.seq < self._ring.low:
            return kept
        return self._ring.get(self._ring.low)

    def _join(self, item: BufferedRecord) -> list[bytes]:
        return join(item.kind, self._session, item.seq, self._floor, item.time_ns, item.body)

    def _frames(self, record: Record) -> list[bytes]:
        return encode(Envelope(session=self._session, record=record))
