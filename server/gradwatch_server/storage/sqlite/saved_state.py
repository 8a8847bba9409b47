"""The saved state: a table of runs, of their attempts, and of the rest.

A save is one transaction, so that the rows always belong together. What is in them is encoded by
`storage.checkpoints`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwatch_server.storage.sqlite.database import Database
from gradwatch_server.storage.store import RunSave, SavedRun

_TABLES_OF_A_RUN = ("saved_runs", "saved_attempts")


class SQLiteSavedState:
    """The tables of the saved state."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def save(self, parts: Mapping[str, bytes], runs: Sequence[RunSave]) -> None:
        """Replace parts of the saved state, all or none."""
        with self._db.deferred_sync(), self._db.transaction():
            for run in runs:
                self._save_run(run)
            self._db.executemany("INSERT OR REPLACE INTO saved_state VALUES (?, ?)", parts.items())

    def _save_run(self, save: RunSave) -> None:
        if save.body is None:
            self._remove(save.run, *_TABLES_OF_A_RUN)
            return
        if save.whole:
            self._remove(save.run, "saved_attempts")
        # The row stays in its place: the order of the rows is the order of the runs.
        self._db.execute(
            "INSERT INTO saved_runs VALUES (?1, ?2) ON CONFLICT DO UPDATE SET body = ?2",
            (save.run, save.body),
        )
        self._db.executemany(
            "INSERT OR REPLACE INTO saved_attempts VALUES (?, ?, ?)",
            [(save.run, number, body) for number, body in save.attempts.items()],
        )
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

    def runs(self) -> list[str]:
        """Return the names of the saved runs in the order in which they were first saved."""
        return [name for (name,) in self._db.rows("SELECT run FROM saved_runs ORDER BY rowid")]

    def run(self, name: str) -> SavedRun:
        """Return what is saved of a run."""
        (body,) = self._db.row("SELECT body FROM saved_runs WHERE run = ?", (name,))
        attempts = self._db.rows(
            "SELECT attempt, body FROM saved_attempts WHERE run = ? ORDER BY attempt", (name,)
        )
        return SavedRun(body, dict(attempts))
