"""The command that deletes a run, and the work that this leaves."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from gradwatch_server.core.entries import Forgotten
from gradwatch_server.core.state import State
from gradwatch_server.engine.commands import CommandError, Outcome
from gradwatch_server.storage.store import StorageError, Store

logger = logging.getLogger(__name__)

SLICE_ROWS: Final = 2_000


@dataclass(frozen=True, slots=True)
class _Deletion:
    """What is left of a deleted run in the store.

    Args:
        run: Its name.
        sessions: Its sessions.
        offset: The newest entry when it was deleted.
        cursor: The newest alert event then.
    """

    run: str
    sessions: frozenset[bytes]
    offset: int
    cursor: int


class Deletions:
    """Deletes from log and alert events what was of deleted runs, in slices.

    What a stop interrupts stays until it is as old as the settings allow.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[_Deletion] = []
        self._held: list[_Deletion] = []  # whose newest event is the newest of all
        self._work: Iterator[None] | None = None

    def begin(self, run: str, sessions: frozenset[bytes]) -> None:
        """Note that a run was deleted."""
        offset, cursor = self._store.log.last_offset, self._store.alert_events.newest()
        self._waiting.append(_Deletion(run, sessions, offset, cursor))

    def work(self, covered: int, newest: int) -> None:
        """Delete a slice.

        Args:
            covered: The newest entry that a durable checkpoint stands for: none after it may go,
                for a restart reads them.
            newest: The newest alert event, which stays as long as it is that.
        """
        if self._work is None:
            due = [own for own in self._waiting if own.offset <= covered]
            late = [own for own in self._held if own.cursor < newest]
            if not due and not late:
                return
            held = self._waiting if due else self._held
            own = (due or late)[0]
            held.remove(own)
            self._work = self._delete(own)
        try:
            next(self._work)
        except StopIteration:
            self._work = None
        except StorageError as error:
            logger.warning("what is left of a deleted run goes later, with age: %s", error)
            self._work = None

    def _delete(self, own: _Deletion) -> Iterator[None]:
        events, log = self._store.alert_events, self._store.log
        while events.remove_run(own.run, own.cursor, SLICE_ROWS):
            yield
        if events.newest() == own.cursor:
            self._held.append(own)
        after = 0
        while after < own.offset:
            rows = list(log.sizes(after, own.offset, SLICE_ROWS))
            gone = [row.offset for row in rows if row.session in own.sessions]
            if gone:
                log.delete(gone)
            after = rows[-1].offset if rows else own.offset
            yield


@dataclass(frozen=True, slots=True)
class DeleteRun:
    """A run is to be deleted, with all that is kept of it.

    Args:
        run: Its name.
        deletions: What does the rest.
    """

    run: str
    deletions: Deletions

    def __call__(self, state: State, _now_ns: int) -> Outcome:
        """Let it go; one that lives stays."""
        run = state.runs.get(self.run)
        if run is None:
            raise CommandError(404, f"no run {self.run[:80]!a}")
        living = [str(own.number) for own in run.attempts if own.lives]
        if living:
            detail = f"run {self.run!a} still trains (attempts {', '.join(living)}): stop it first"
            raise CommandError(409, detail)
        sessions = frozenset(
            session.id for own in run.attempts for session in own.sessions.values()
        )

        def answer(_: State) -> Any:
            self.deletions.begin(self.run, sessions)

        return Outcome(answer, (Forgotten(self.run, run.attempts[-1].number),))
