"""A session's records from where they lie on disk, for when its process has ended.

They keep their session and their numbers, so that the aggregator refuses what it has already.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from gradwatch_wire.records import Envelope, Welcome
from gradwatch_wire.session.driver import Send, send_due
from gradwatch_wire.session.replayed import as_replayed
from gradwatch_wire.session.send_buffer import BufferedRecord
from gradwatch_wire.session.session import Session
from gradwatch_wire.session.spilled_session import SpilledSession

ReadFrom = Callable[[int], Iterator[BufferedRecord]]
"""Yields the records from a number on, in order."""


class RecordCursor:
    """Finds records by number: quick for the same number again, and for ascending ones.

    Args:
        read_from: Begins to read. It is called for each number lower than the one before.
        is_growing: Whether to read again from a number after which there was nothing yet.
    """

    def __init__(self, read_from: ReadFrom, *, is_growing: bool) -> None:
        self._read_from = read_from
        self._is_growing = is_growing
        self._records: Iterator[BufferedRecord] = iter(())
        self._asked: int | None = None
        self._found: BufferedRecord | None = None

    def find(self, seq: int) -> BufferedRecord | None:
        """Return the first record from number *seq* on, None if there is none."""
        at_end = self._found is None and self._is_growing
        if self._asked is None or seq < self._asked or at_end:
            self._records = self._read_from(seq)
            self._found = next(self._records, None)
        while self._found is not None and self._found.seq < seq:
            self._found = next(self._records, None)
        self._asked = seq
        return self._found


class SpillSource:
    """A source of records that are all there are, and stay where they are."""

    def __init__(self, read_from: ReadFrom) -> None:
        self.counters: Counter[str] = Counter()
        self._cursor = RecordCursor(read_from, is_growing=False)

    def get(self, seq: int) -> BufferedRecord | None:
        """Return the record of a number, None if there is none."""
        found = self._cursor.find(seq)
        return found if found is not None and found.seq == seq else None

    def first_from(self, seq: int) -> BufferedRecord | None:
        """Return the first record from number *seq* on."""
        return self._cursor.find(seq)

    def release(self, acked: int) -> int:
        """Forget nothing: its files are deleted at the end. Return *acked*."""
        return acked

    def resume(self, welcome: Welcome) -> int:
        """Return what the aggregator has stored: it is right, also where the files end before."""
        return welcome.acked


def resumed_session(spilled: SpilledSession) -> Session[SpillSource]:
    """Return a session that goes on with what is on disk, and whose HELLO says so."""
    return Session(spilled.session, as_replayed(spilled.hello), SpillSource(spilled.records))


class Orphan(Protocol):
    """A session on disk that this process alone may send, until it calls one of the methods."""

    @property
    def session(self) -> Session[SpillSource]:
        """Return the session."""

    def finish(self) -> None:
        """End it: everything is stored, or it is refused."""

    def leave(self) -> None:
        """Leave it to the next process."""


class OrphanedSessions:
    """Sends them one after the other, in the order given."""

    def __init__(self, orphans: Iterable[Orphan]) -> None:
        self.num_sent = 0  # records of those that are over
        self._orphans = deque(orphans)

    @property
    def are_over(self) -> bool:
        return not self._orphans

    def send(self, send: Send, now_s: float) -> None:
        """Send what is due of the session whose turn it is."""
        if not self._orphans:
            return
        session = self._orphans[0].session
        send_due(session, send, now_s)
        if session.is_over:
            self.num_sent += session.counters["sent"]
            self._orphans.popleft().finish()

    def receive(self, envelope: Envelope, now_s: float) -> None:
        """Take in an answer, if it is for the session whose turn it is."""
        if self._orphans:
            session = self._orphans[0].session
            session.receive(envelope, now_s)
            session.alerts.clear()  # of a training that has ended

    def greet_again(self) -> None:
        """Say HELLO for the session whose turn it is: the connection is another one."""
        if self._orphans:
            self._orphans[0].session.greet_again()

    def close(self) -> None:
        """Leave what is not stored to the next process."""
        while self._orphans:
            self._orphans.popleft().leave()
