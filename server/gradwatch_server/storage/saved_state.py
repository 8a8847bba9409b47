"""The saved state: a table of runs, of their attempts, of forgotten names, and of the rest.

A save is one transaction, so that the rows always belong together. What is in them is encoded by
`storage.checkpoints`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gradwatch_server.storage.database import Database
from gradwatch_server.storage.rows import ForgottenRun, RunSave, SavedRun

_TABLES_OF_A_RUN = ("saved_runs", "saved_attempts")

SAVE_PART: Final = (
    "INSERT INTO saved_state (part, body) VALUES (?, ?)"
    " ON CONFLICT (part) DO UPDATE SET body = excluded.body"
)
"""Statement that writes a part of the saved state that is of no run."""

_SAVE_RUN: Final = (
    "INSERT INTO saved_runs (run, body, summary) VALUES (?, ?, ?)"
    " ON CONFLICT (run) DO UPDATE SET body = excluded.body, summary = excluded.summary"
)
_SAVE_ATTEMPT: Final = (
    "INSERT INTO saved_attempts (run, attempt, body) VALUES (?, ?, ?)"
    " ON CONFLICT (run, attempt) DO UPDATE SET body = excluded.body"
)
_FORGET: Final = (
    "INSERT INTO forgotten_runs (run, position, attempts, forgotten_ns) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (run) DO UPDATE SET position = excluded.position, attempts = excluded.attempts,"
    " forgotten_ns = excluded.forgotten_ns"
)


class SavedState:
    """Each run as it was at some entry of its log, as `checkpoints` encodes it."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def save(self, parts: Mapping[str, bytes], runs: Sequence[RunSave]) -> None:
        """Replace parts of the saved state, all or none."""
        with self._db.transaction():
            for run in runs:
                self._save_run(run)
            self._db.executemany(SAVE_PART, list(parts.items()))

    def _save_run(self, save: RunSave) -> None:
        if save.body is None:
            self._remove(save.run, *_TABLES_OF_A_RUN)
            return
        if save.whole:
            self._remove(save.run, "saved_attempts")
        self._db.execute(_SAVE_RUN, (save.run, save.body, save.summary))
        attempts = [(save.run, number, body) for number, body in save.attempts.items()]
        self._db.executemany(_SAVE_ATTEMPT, attempts)
        if save.first_attempt > 1:
            delete = "DELETE FROM saved_attempts WHERE run = ? AND attempt < ?"
            self._db.execute(delete, (save.run, save.first_attempt))

    def _remove(self, run: str, *tables: str) -> None:
        for table in tables:
            self._db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))  # noqa: S608 - a literal

    def part(self, name: str) -> bytes | None:
        """Return a part that is of no run, None if there is none."""
        row = self._db.row("SELECT body FROM saved_state WHERE part = ?", (name,))
        return None if row is None else row[0]

    def runs(self) -> dict[str, bytes | None]:
        """Return the names of the saved runs, and the summary of each that had ended."""
        return dict(self._db.rows("SELECT run, summary FROM saved_runs ORDER BY run"))

    def run(self, name: str) -> SavedRun | None:
        """Return what is saved of a run, None if nothing is."""
        row = self._db.row("SELECT body FROM saved_runs WHERE run = ?", (name,))
        if row is None:
            return None
        attempts = self._db.rows(
            "SELECT attempt, body FROM saved_attempts WHERE run = ? ORDER BY attempt", (name,)
        )
        return SavedRun(row[0], dict(attempts))

    def forget(self, run: str, forgotten: ForgottenRun, now_ns: int) -> None:
        """Remove what is saved of a run, and keep what its name must not be used for again."""
        with self._db.transaction():
            self._remove(run, *_TABLES_OF_A_RUN)
            row = (run, forgotten.position, forgotten.attempts, now_ns)
            self._db.execute(_FORGET, row)

    def forgotten(self, run: str) -> ForgottenRun:
        """Return what is kept of the name of a run that left memory."""
        select = "SELECT position, attempts FROM forgotten_runs WHERE run = ?"
        row = self._db.row(select, (run,))
        return ForgottenRun() if row is None else ForgottenRun(*row)

    def trim_forgotten(self, before_ns: int) -> None:
        """Delete names that were forgotten before a time, and of which the log has nothing."""
        with self._db.transaction():
            self._db.execute(
                "DELETE FROM forgotten_runs WHERE forgotten_ns < ?"
                " AND run NOT IN (SELECT run FROM log)",
                (before_ns,),
            )
