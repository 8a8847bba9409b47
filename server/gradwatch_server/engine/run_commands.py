"""The command that deletes a run, and the work that this leaves."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from gradwatch_server.core.entries import Forgotten
from gradwatch_server.core.state import State
from gradwatch_server.engine.commands import CommandError, CommandResult
from gradwatch_server.storage.rows import StorageError
from gradwatch_server.storage.store import Store

logger = logging.getLogger(__name__)

SLICE_ROWS: Final = 2_000


@dataclass(frozen=True, slots=True)
class _Deletion:
    """Remains of a deleted run in the store."""

    run: str
    position: int
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

    def begin(self, run: str) -> None:
        """Note that a run was deleted, which is committed."""
        position = self._store.log.last(run)
        self._waiting.append(_Deletion(run, position, self._store.alert_events.newest()))

    def run_slice(self, newest: int) -> bool:
        """Delete a slice; return True if nothing is left to be deleted now.

        Args:
            newest: The newest alert event, which stays as long as it is that.
        """
        if self._work is None:
            late = [held for held in self._held if held.cursor < newest]
            if not self._waiting and not late:
                return True
            held = self._waiting or self._held
            deletion = (self._waiting or late)[0]
            held.remove(deletion)
            self._work = self._delete(deletion)
        try:
            next(self._work)
        except StopIteration:
            self._work = None
        except StorageError as error:
            logger.warning("what is left of a deleted run goes later, with age: %s", error)
            self._work = None
        return False

    def _delete(self, deletion: _Deletion) -> Iterator[None]:
        events = self._store.alert_events
        while events.remove_run(deletion.run, deletion.cursor, SLICE_ROWS):
            yield
        if events.newest() == deletion.cursor:
            self._held.append(deletion)
        while self._store.log.remove(deletion.run, deletion.position, SLICE_ROWS):
            yield


@dataclass(frozen=True, slots=True)
class DeleteRun:
    """A run is to be deleted, with all that is kept of it."""

    run: str
    deletions: Deletions

    def __call__(self, state: State, _now_ns: int) -> CommandResult:
        """Let it go; one that lives stays."""
        run = state.runs.get(self.run)
        if run is None:
            raise CommandError(404, f"no run {self.run[:80]!a}")
        living = [str(attempt.number) for attempt in run.attempts if attempt.lives]
        if living:
            detail = f"run {self.run!a} still trains (attempts {', '.join(living)}): stop it first"
            raise CommandError(409, detail)

        def answer(after: State) -> Any:
            # One that came back in the same round has begun another attempt in this log.
            if self.run not in after.runs:
                self.deletions.begin(self.run)

        return CommandResult(answer, (Forgotten(self.run, run.attempts[-1].number),))
