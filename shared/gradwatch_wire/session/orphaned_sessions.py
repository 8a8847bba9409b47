"""Sessions whose process has ended, sent by one that lives, over its own connection."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from gradwatch_wire.records import Envelope
from gradwatch_wire.session.driver import Send, send_due
from gradwatch_wire.session.session import Session
from gradwatch_wire.session.spill_source import SpillSource


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
