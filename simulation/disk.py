"""The disk: a database in memory that outlives the aggregator, and the real log over it.

A fault can come before, within and after every statement, so a transaction is torn wherever it
can be. What was not committed is gone then; what was is there.
"""

from __future__ import annotations

import io
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from gradwatch_server.storage.sqlite import database
from gradwatch_server.storage.sqlite.log import Line, Log

Hook = Callable[[str], None]

PATH: Final = Path("simulated.db")
WRITING: Final = frozenset({"BEGIN", "COMMIT", "INSERT", "DELETE", "UPDATE"})


class Connection(sqlite3.Connection):
    """A connection whose writing statements ask first whether they may succeed."""

    before: Hook | None = None
    after: Hook | None = None

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Run one statement, unless a fault comes first."""
        word = sql.partition(" ")[0]
        if word not in WRITING:
            return super().execute(sql, parameters)
        self._call(self.before, word)
        cursor = super().execute(sql, parameters)
        self._call(self.after, word)
        return cursor

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        """Run one statement per row, unless a fault comes first."""
        self._call(self.before, "rows")
        cursor = super().executemany(sql, parameters)
        self._call(self.after, "rows")
        return cursor

    def _call(self, hook: Hook | None, word: str) -> None:
        if hook is not None:
            hook(word)


class Disk:
    """What outlives the aggregator."""

    def __init__(self, before: Hook, after: Hook) -> None:
        self._before = before
        self._after = after
        self.db = self._open()

    def _open(self) -> Connection:
        db = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, factory=Connection
        )
        database._migrate(db, PATH)
        db.before, db.after = self._before, self._after
        return db

    @property
    def num_alert_events(self) -> int:
        """Rows of the alert store."""
        (count,) = self.db.execute("SELECT count(*) FROM alert_events").fetchone()
        return int(count)

    def wipe(self) -> None:
        """Lose everything."""
        self.db.close()
        self.db = self._open()

    def pull_the_plug(self) -> None:
        """Lose what is not committed."""
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")


class SimulatedLog(Log):
    """The real log, but for the file, its lock, and closing it."""

    def __init__(self, disk: Disk, on_commit: Callable[[Sequence[Line]], None]) -> None:
        self.path = PATH
        self._db = disk.db
        self._lock = io.StringIO()
        self._on_commit = on_commit
        self._lines: Sequence[Line] = ()
        self.last_offset = self._find_last()

    def append(self, lines: Sequence[Line]) -> None:
        """Write lines; whoever watches is told as soon as they are committed."""
        self._lines = lines
        try:
            super().append(lines)
        finally:
            self._lines = ()

    def committed(self) -> None:
        """Pass on that what is being appended is committed."""
        lines, self._lines = self._lines, ()
        self._on_commit(lines)

    def close(self) -> None:
        """Keep the database for the next start."""
