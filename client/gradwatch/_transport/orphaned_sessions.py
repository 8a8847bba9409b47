"""What an earlier process of this run and rank left in spill files when it was killed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gradwatch._faults import Faults
from gradwatch._transport.spill import remove_file
from gradwatch_wire import Envelope, Hello
from gradwatch_wire.session.driver import Send, send_due
from gradwatch_wire.session.session import Phase, Session
from gradwatch_wire.session.session_lock import SessionLock
from gradwatch_wire.session.spill_format import SpillError
from gradwatch_wire.session.spill_source import SpillSource, resumed_session
from gradwatch_wire.session.spilled_session import SpilledSession, find_sessions


class _Claimed(NamedTuple):
    """A session on disk that this process alone may send."""

    spilled: SpilledSession
    lock: SessionLock
    session: Session[SpillSource]


class OrphanedSessions:
    """Sessions whose process is gone, sent one after the other over this process's socket."""

    def __init__(self, directory: Path, hello: Hello, faults: Faults) -> None:
        self.num_sent = 0  # records of those that are over
        self._faults = faults
        self._claimed = deque(_claim_all(directory, hello, faults))

    def send(self, send: Send, now_s: float) -> None:
        """Send what is due of the session whose turn it is."""
        if not self._claimed:
            return
        session = self._claimed[0].session
        send_due(session, send, now_s)
        if session.is_over:
            self._finish(self._claimed.popleft())

    def receive(self, envelope: Envelope, now_s: float) -> None:
        """Take in an answer, if it is for the session whose turn it is."""
        if self._claimed:
            session = self._claimed[0].session
            session.receive(envelope, now_s)
            session.alerts.clear()  # nobody trains what they are about

    def close(self) -> None:
        """Leave what is not sent to the next process."""
        for claimed in self._claimed:
            claimed.lock.release(remove=False)
        self._claimed.clear()

    def _finish(self, claimed: _Claimed) -> None:
        session = claimed.session
        self.num_sent += session.counters["sent"]
        is_stored = session.phase is not Phase.REFUSED
        if is_stored:
            for path in claimed.spilled.paths:
                remove_file(path)
        else:
            why = f"the aggregator refuses a session on disk: {session.refused!a}"
            self._faults.note("spill", why)
        claimed.lock.release(remove=is_stored)


def _claim_all(directory: Path, hello: Hello, faults: Faults) -> Iterator[_Claimed]:
    """Lock the sessions of this run and rank whose process is gone; the oldest first."""
    try:
        paths = find_sessions(directory, hello.run, hello.rank)
    except OSError as error:
        faults.note("spill", error)
        return
    for path in paths:
        try:
            spilled = SpilledSession.open(path)
            lock = SessionLock.take(directory, spilled.session)
        except (SpillError, OSError) as error:
            faults.note("spill", error)
            continue
        if lock is not None:  # else its process is alive
            yield _Claimed(spilled, lock, resumed_session(spilled))
