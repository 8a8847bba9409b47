"""The client's side of the protocol: what to send next, what an answer means.

It has neither socket nor clock; the sender thread drives it and passes the time in.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Final

from gradwatch._manifests import MAX_MANIFESTS
from gradwatch._ring import Ring, Stored
from gradwatch_wire import (
    Ack,
    Alert,
    Beat,
    Envelope,
    Hello,
    Json,
    Kind,
    Manifest,
    Record,
    Refuse,
    Welcome,
    encode,
    encode_body,
    join,
)
from gradwatch_wire.limits import MAX_RECORD_BYTES

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


class Protocol:
    """One session: HELLO until WELCOME, then records in order until acknowledged."""

    def __init__(self, session: bytes, hello: Hello, max_bytes: int) -> None:
        self.phase = Phase.GREETING
        self.counters: Counter[str] = Counter()
        self.refused = ""
        self.alerts: list[dict[str, Json]] = []
        self._session = session
        self._hello = hello
        self._ring = Ring(max_bytes)
        self._manifests: dict[int, bytes] = {}  # id -> body, in case the aggregator forgot them
        self._max_record_bytes = MAX_RECORD_BYTES
        self._boot_id = b""
        self._acked = 0
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

        Return False if it is larger than the aggregator reads.
        """
        kind, body = encode_body(record)
        if len(body) + 64 > self._max_record_bytes:  # 64: the envelope around it
            self.counters["oversize"] += 1
            return False
        if isinstance(record, Manifest):
            self._manifests[record.manifest_id] = body
            if len(self._manifests) > MAX_MANIFESTS:
                del self._manifests[next(iter(self._manifests))]
        self.counters["evicted"] += self._ring.append(kind, time_ns, body)
        self._cursor = max(self._cursor, self._ring.low)
        return True

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
        # What gave way counts as no longer on its way, or a long outage would never end.
        first = max(self._acked + 1, self._ring.low)
        if self.phase is not Phase.OPEN or self._cursor - first >= MAX_IN_FLIGHT:
            return None
        item = self._ring.get(self._cursor)
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
            for body in reversed(self._manifests.values()):
                if not self._ring.holds(body):
                    self._ring.put_back(Kind.MANIFEST, 0, body)
        self.phase = Phase.OPEN
        self._boot_id = welcome.boot_id
        self._max_record_bytes = welcome.max_record_bytes
        self._acked = min(welcome.acked, self._ring.last)
        self._rewound = None
        self._progress_at = now_s
        self.counters["acked"] += self._ring.release(self._acked)
        self._cursor = max(self._acked + 1, self._ring.low)

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
        self.counters["acked"] += self._ring.release(acked)
        self._cursor = max(self._cursor, acked + 1)
        where = (ack.boot_id, acked)
        if ack.rewind and self._rewound != where:
            # Once per place: more of the same answers are still on their way.
            self._rewound = where
            self._cursor = max(acked + 1, self._ring.low)

    def _is_stuck(self, now_s: float) -> bool:
        if self._cursor <= self._acked + 1:
            self._progress_at = now_s
        return now_s - self._progress_at > ACK_TIMEOUT_S

    def _join(self, item: Stored) -> list[bytes]:
        low = self._ring.low
        return join(item.kind, self._session, item.seq, low, item.time_ns, item.body)

    def _frames(self, record: Record) -> list[bytes]:
        return encode(Envelope(session=self._session, record=record))
