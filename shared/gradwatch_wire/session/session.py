"""One session of the protocol: what to send next, and what an answer means.

It is the same for a process that trains and for one that is gone and left its records on disk:
where they come from is the source's business. It has neither socket nor clock nor thread; what
drives it (`driver.py`) passes the time in. Typical use::

    session = Session(os.urandom(16), hello, Outbox(max_bytes))
    session.source.append(record, time.time_ns())
    send_due(session, send, time.monotonic())
    session.receive(envelope, time.monotonic())
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Generic, Protocol, TypeVar

from gradwatch_wire.codec import encode, join
from gradwatch_wire.limits import MAX_IN_FLIGHT_BYTES, RECORD_OVERHEAD_BYTES
from gradwatch_wire.records import Ack, Alert, Beat, Envelope, Hello, Json, Record, Refuse, Welcome
from gradwatch_wire.session.send_buffer import BufferedRecord
from gradwatch_wire.session.timing import ACK_TIMEOUT_S, BEAT_EVERY_S, HELLO_EVERY_S, MAX_IN_FLIGHT


class RecordSource(Protocol):
    """Numbered records, oldest first, some of which may be gone for ever."""

    counters: Counter[str]
    """Counts of records by outcome, for `BEAT` and for people. The session counts `sent`."""

    def get(self, seq: int) -> BufferedRecord | None:
        """Return the record of a number, None if it is gone or was not made yet."""

    def first_from(self, seq: int) -> BufferedRecord | None:
        """Return the first record from number *seq* on, where all before it is released."""

    def release(self, acked: int) -> int:
        """Forget all up to *acked*.

        Return *acked*, or the last number there is if the aggregator claims to have more.
        """

    def resume(self, welcome: Welcome) -> int:
        """Go on after what the aggregator has stored, which may be less than it once had.

        Return the number up to which nothing has to be sent.
        """


S = TypeVar("S", bound=RecordSource)


class SessionPhase(Enum):
    """State of the session."""

    GREETING = "greeting"
    OPEN = "open"
    REFUSED = "refused"


class Session(Generic[S]):
    """HELLO until WELCOME, then records in order until they are acknowledged.

    Args:
        session_id: 16 bytes that no other session has.
        max_in_flight: Records that are sent and not acknowledged, at most.

    Attributes:
        every: Steps between two that all ranks of the attempt measure, as the aggregator last said.
    """

    def __init__(
        self, session_id: bytes, hello: Hello, source: S, max_in_flight: int = MAX_IN_FLIGHT
    ) -> None:
        self.id = session_id
        self.source = source
        self.phase = SessionPhase.GREETING
        self.refused = ""  # the reason
        self.http = ""  # where the aggregator answers HTTP, as it says
        self.alerts: list[dict[str, Json]] = []
        self.counters = source.counters
        self.every = 1
        self._hello = replace(hello, credit=True)
        self._max_in_flight = max_in_flight
        self._max_in_flight_bytes = MAX_IN_FLIGHT_BYTES
        self._window_bytes: int | None = None  # what the aggregator granted, None without credit
        self._shrink = 0  # the newest number of a smaller window
        self._waiting_bytes = 0  # size of the record that waits for a wider one
        self._must_beat = False  # whether the aggregator is to know of these at once
        self._in_flight: deque[tuple[int, int]] = deque()  # number and bytes of each
        self._in_flight_bytes = 0
        self._peeked_bytes = 0
        self._boot_id = b""
        self._acked = 0
        self._floor = 1  # all before is acknowledged, or cannot be supplied any more
        self._cursor = 1  # the next one to send
        self._rewound: tuple[bytes, int] | None = None
        self._hello_at_s = float("-inf")
        self._beat_at_s = float("-inf")
        self._progress_at_s = float("-inf")

    @property
    def is_drained(self) -> bool:
        """End of sending: true once everything is acknowledged, or never will be."""
        return self.phase is SessionPhase.REFUSED or self._has_nothing_left

    @property
    def is_over(self) -> bool:
        """End of the session: true once it is refused, or the aggregator has everything."""
        opened = self.phase is SessionPhase.OPEN
        return self.phase is SessionPhase.REFUSED or (opened and self._has_nothing_left)

    @property
    def _has_nothing_left(self) -> bool:
        nothing_in_flight = self._cursor == self._floor
        return nothing_in_flight and self.source.first_from(self._cursor) is None

    @property
    def has_sent_all(self) -> bool:
        """End of the backlog: true if the next record is not made yet, or is gone."""
        return self.source.get(self._cursor) is None

    def postpone_beat(self, now_s: float) -> None:
        """Put off the next BEAT: the newest record was sent, and says as much."""
        self._beat_at_s = now_s

    def due(self, now_s: float) -> bytes | None:
        """Return the HELLO that is due, if one is."""
        if self.phase is SessionPhase.OPEN and self._is_stuck(now_s):
            self.phase = SessionPhase.GREETING
        if self.phase is not SessionPhase.GREETING or now_s - self._hello_at_s < HELLO_EVERY_S:
            return None
        return self._message(self._hello)

    def greeted(self, now_s: float) -> None:
        self._hello_at_s = now_s

    def greet_again(self) -> None:
        """Say HELLO before anything else, and at once: who answers may be another one now."""
        if self.phase is not SessionPhase.REFUSED:
            self.phase = SessionPhase.GREETING
            self._hello_at_s = float("-inf")

    def beat(
        self,
        last_step: int,
        since_s: float,
        now_s: float,
        is_training: Callable[[], bool | None] = lambda: None,
    ) -> bytes | None:
        """Return the BEAT that is due, if one is; *is_training* is asked only then."""
        is_due = now_s - self._beat_at_s >= BEAT_EVERY_S or self._must_beat
        if self.phase is not SessionPhase.OPEN or not is_due:
            return None
        return self._beat(now_s, last_step, since_s, is_training())

    def credit_beat(self, now_s: float) -> bytes | None:
        """Return the BEAT that is due for the sake of credit, of a session without a training."""
        is_due = self._waiting_bytes and now_s - self._beat_at_s >= BEAT_EVERY_S
        if self.phase is not SessionPhase.OPEN or not (self._must_beat or is_due):
            return None
        return self._beat(now_s, -1, 0.0, None)

    def _beat(self, now_s: float, last_step: int, since_s: float, training: bool | None) -> bytes:
        self._beat_at_s, self._must_beat = now_s, False
        return self._message(
            Beat(
                last_step=last_step,
                since_s=since_s,
                counters=dict(self.counters),
                training=training,
                shrink=self._shrink,
                waiting_bytes=self._waiting_bytes,
            )
        )

    def peek(self) -> bytes | None:
        """Return the next record to send, if one may be sent; `sent` moves on."""
        if self.phase is not SessionPhase.OPEN or self._cursor - self._floor >= self._max_in_flight:
            return None
        item = self.source.get(self._cursor)
        if item is not None and not self._fits(item):
            return None
        if item is None and self._cursor == self._floor:
            # No source has these numbers any more: go on after them; `low` tells the aggregator.
            item = self.source.first_from(self._cursor)
            self._floor = self._cursor = self._cursor if item is None else item.seq
        if item is None:
            return None
        self._peeked_bytes = len(item.body) + RECORD_OVERHEAD_BYTES
        return self._join(item)

    def _fits(self, item: BufferedRecord) -> bool:
        """Tell whether a record may be sent beside those that are in flight.

        Without credit one always may.
        """
        while self._in_flight and self._in_flight[0][0] < self._floor:
            self._in_flight_bytes -= self._in_flight.popleft()[1]
        size = len(item.body) + RECORD_OVERHEAD_BYTES
        if self._window_bytes is None:
            sum_bytes = self._in_flight_bytes + size
            return not self._in_flight or sum_bytes <= self._max_in_flight_bytes
        if self._in_flight_bytes + size <= self._window_bytes:
            self._waiting_bytes = 0
            return True
        self._must_beat |= not self._waiting_bytes  # once, and with each regular one
        self._waiting_bytes = size
        return False

    def sent(self) -> None:
        """Say that what `peek` returned is with the socket."""
        self._in_flight.append((self._cursor, self._peeked_bytes))
        self._in_flight_bytes += self._peeked_bytes
        self._cursor += 1
        self.counters["sent"] += 1

    def receive(self, envelope: Envelope, now_s: float) -> bool:
        """Take in an answer of the aggregator; return False if it is for another session."""
        if envelope.session != self.id:
            return False
        if self.phase is not SessionPhase.REFUSED:
            self._take(envelope.record, now_s)
        return True

    def _take(self, answer: Record, now_s: float) -> None:
        match answer:
            case Welcome():
                self._welcome(answer, now_s)
            case Ack():
                self._acknowledge(answer, now_s)
            case Alert(alert=alert):
                self.alerts.append(dict(alert))
            case Refuse(reason=reason):
                self.phase = SessionPhase.REFUSED
                self.refused = reason

    def _welcome(self, welcome: Welcome, now_s: float) -> None:
        self.phase = SessionPhase.OPEN
        self._boot_id = welcome.boot_id
        self.http = welcome.http
        self._rewound = None
        self._progress_at_s = now_s
        self._acked = self.source.resume(welcome)
        self._max_in_flight_bytes = welcome.max_in_flight_bytes
        self._window_bytes, self._shrink = welcome.window_bytes, 0
        self._waiting_bytes, self._must_beat = 0, False
        self._floor = self._acked + 1
        self._rewind()

    def _acknowledge(self, ack: Ack, now_s: float) -> None:
        if ack.boot_id != self._boot_id:
            # It restarted. HELLO at once, once: its WELCOME says from where to go on.
            if self.phase is SessionPhase.OPEN:
                self.greet_again()
            return
        self.every = ack.every
        acked = self.source.release(ack.acked)
        if acked > self._acked:
            self._acked = acked
            self._progress_at_s = now_s
        self._floor = max(self._floor, acked + 1)
        self._cursor = max(self._cursor, self._floor)
        if ack.window_bytes is not None and self._window_bytes is not None:
            self._window_bytes = ack.window_bytes
            self._must_beat |= ack.shrink > self._shrink
            self._shrink = max(self._shrink, ack.shrink)
        place = (ack.boot_id, acked)
        if ack.rewind and self._rewound != place:
            # Once per place: more of the same answers are still on their way.
            self._rewound = place
            self._rewind()

    def _rewind(self) -> None:
        """Send again what is not acknowledged."""
        self._cursor = self._floor
        self._in_flight.clear()
        self._in_flight_bytes = 0

    def _is_stuck(self, now_s: float) -> bool:
        if self._cursor == self._floor:
            self._progress_at_s = now_s
        return now_s - self._progress_at_s > ACK_TIMEOUT_S

    def _join(self, item: BufferedRecord) -> bytes:
        return join(item.kind, self.id, item.seq, self._floor, item.time_ns, item.body)

    def _message(self, record: Record) -> bytes:
        return encode(Envelope(session=self.id, record=record))
