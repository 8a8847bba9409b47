"""Replay: what to send of a spilled session, and what an answer means. No socket, no clock.

It is the client's protocol for a session whose process is gone: the same session and sequence
numbers, so that the aggregator refuses what it has stored already.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gradwatch_wire.codec import encode, join
from gradwatch_wire.records import Ack, Envelope, Refuse, Welcome
from gradwatch_wire.session.replayed import as_replayed
from gradwatch_wire.session.spill import Spilled, SpilledSession

HELLO_EVERY_S: Final = 1.0
ACK_TIMEOUT_S: Final = 5.0
MAX_IN_FLIGHT: Final = 256


class Replay:
    """One spilled session: HELLO until WELCOME, then what is not stored, until acknowledged."""

    def __init__(self, source: SpilledSession) -> None:
        self.source = source
        self.refused = ""
        self.num_sent = 0
        self.done = False
        self._hello = as_replayed(source.hello)
        self._open = False
        self._boot_id = b""
        self._asked_s = float("-inf")
        self._progress_s = 0.0
        self._acked = 0
        self._floor = 1  # all before is stored, or not in the file
        self._sent = 0  # number of the last record sent
        self._rewound: int | None = None
        self._records: Iterator[Spilled] = iter(())
        self._next: Spilled | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more can be done: everything is stored, or the session is refused."""
        return self.done or bool(self.refused)

    def due(self, now_s: float) -> list[bytes] | None:
        """Return the message to send now, if one is; `sent` moves on."""
        if self.over:
            return None
        if self._open and now_s - self._progress_s > ACK_TIMEOUT_S:
            self._open = False
        if not self._open:
            if now_s - self._asked_s < HELLO_EVERY_S:
                return None
            return encode(Envelope(session=self.source.session, record=self._hello))
        record = self._next
        if record is None:
            return None
        if self._sent < self._floor:
            # All before is stored; numbers that the file does not have are lost, says `low`.
            self._floor = record.seq
        elif record.seq != self._sent + 1 or record.seq - self._floor >= MAX_IN_FLIGHT:
            return None
        session, low = self.source.session, self._floor
        return join(record.kind, session, record.seq, low, record.time_ns, record.body)

    def sent(self, now_s: float) -> None:
        """Say that what `due` returned is with the socket."""
        if not self._open:
            self._asked_s = now_s
        elif self._next is not None:
            self._sent = self._next.seq
            self._next = next(self._records, None)
            self.num_sent += 1

    def receive(self, envelope: Envelope, now_s: float) -> bool:
        """Take in an answer; return False if it is for another session."""
        if envelope.session != self.source.session:
            return False
        match envelope.record:
            case Welcome() as welcome:
                self._boot_id = welcome.boot_id
                self._open = True
                self._progress_s = now_s
                self._go_on_from(welcome.acked)
            case Ack() as ack if ack.boot_id != self._boot_id:
                if self._open:
                    self._open = False
                    self._asked_s = float("-inf")
            case Ack() as ack if self._open:
                self._acknowledge(ack, now_s)
            case Refuse(reason=reason):
                self.refused = reason
        return True

    def _go_on_from(self, acked: int) -> None:
        self._acked = self._sent = acked
        self._floor = acked + 1
        self._rewound = None
        self._records = self.source.records(acked + 1)
        self._next = next(self._records, None)
        self.done = self._next is None

    def _acknowledge(self, ack: Ack, now_s: float) -> None:
        if ack.acked > self._acked:
            self._acked = ack.acked
            self._floor = max(self._floor, ack.acked + 1)
            self._progress_s = now_s
        if ack.rewind and self._rewound != ack.acked:
            self._go_on_from(ack.acked)
            self._rewound = ack.acked
        self.done = self._next is None and self._acked >= self._sent
