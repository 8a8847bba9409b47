"""The saved state: a table of runs, of their attempts, of forgotten names, and of the rest.

A save is one transaction, so that the rows always belong together. What is in them is encoded by
`storage.checkpoints`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwatch_server.storage.sqlite.database import Database
from gradwatch_server.storage.store import ForgottenRun, RunSave, SavedRun

_TABLES_OF_A_RUN = ("saved_runs", "saved_attempts")


class SQLiteSavedState:
    """The tables of the saved state."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def save(self, parts: Mapping[str, bytes], runs: Sequence[RunSave]) -> None:
        """Replace parts of the saved state, all or none."""
        with self._db.transaction():
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
            self._db.execute("INSERT OR REPLACE INTO forgotten_runs VALUES (?, ?, ?, ?)", row)

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
