"""What an earlier process of this run and rank left in spill files when it was killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gradwatch._faults import Faults
from gradwatch._transport.spill import remove_file
from gradwatch_wire import Hello
from gradwatch_wire.session.session import Phase
from gradwatch_wire.session.session_lock import SessionLock
from gradwatch_wire.session.spill_format import SpillError
from gradwatch_wire.session.spill_source import resumed_session
from gradwatch_wire.session.spilled_session import SpilledSession, find_sessions


class OrphanFiles:
    """A session on disk and the lock on it; its files are deleted once everything is stored."""

    def __init__(self, spilled: SpilledSession, lock: SessionLock, faults: Faults) -> None:
        self.session = resumed_session(spilled)
        self._spilled = spilled
        self._lock = lock
        self._faults = faults

    def finish(self) -> None:
        """Delete the files; if the aggregator refused the session, tell and keep them."""
        is_stored = self.session.phase is not Phase.REFUSED
        if is_stored:
            for path in self._spilled.paths:
                remove_file(path)
        else:
            why = f"the aggregator refuses a session on disk: {self.session.refused!a}"
            self._faults.note("spill", why)
        self._lock.release(remove=is_stored)

    def leave(self) -> None:
        """Leave the files to the next process."""
        self._lock.release(remove=False)


def claim_orphans(directory: Path, hello: Hello, faults: Faults) -> Iterator[OrphanFiles]:
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
            yield OrphanFiles(spilled, lock, faults)
