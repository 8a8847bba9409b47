"""The disk: a database in memory that outlives the aggregator, and the real store over it.

A fault can come before and after every statement, so a transaction is torn wherever it can be. What
was not committed is gone then; what was is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from gradwatch_server.clock import Clock
from gradwatch_server.storage.log import Log
from gradwatch_server.storage.rows import LogEntry
from gradwatch_server.storage.sqlite.database import SQLiteDatabase
from gradwatch_server.storage.sqlite.store import SQLiteStore

Hook = Callable[[str], None]

WRITING: Final = frozenset({"BEGIN", "COMMIT", "INSERT", "DELETE", "UPDATE"})


class Disk(SQLiteDatabase):
    """Database that outlives the aggregator. Statements that write ask first if they may."""

    def __init__(self, before: Hook, after: Hook) -> None:
        self._before, self._after = before, after
        self._is_empty = True
        super().__init__(None)
        self._is_empty = False

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        """Run one statement, unless a fault comes first."""
        word = sql.partition(" ")[0]
        if self._is_empty or word not in WRITING:
            return super().execute(sql, parameters)
        self._before(word)
        cursor = super().execute(sql, parameters)
        self._after(word)
        return cursor

    def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        """Run one statement per row, unless a fault comes first."""
        self._before("rows")
        super().executemany(sql, rows)
        self._after("rows")

    def copy(self) -> bytes:
        return self.connection.serialize()

    def put_back(self, copy: bytes) -> None:
        """Be what it was when it was copied."""
        self.connection.deserialize(copy)

    def wipe(self) -> None:
        """Lose everything."""
        self._is_empty = True
        self.reset("it is lost")
        self._is_empty = False


class SimulatedLog(Log):
    """The real log; a callback gets the lines as soon as they are committed."""

    def __init__(self, disk: Disk, on_commit: Callable[[Sequence[LogEntry]], None]) -> None:
        self._on_commit = on_commit
        self._lines: Sequence[LogEntry] = ()
        super().__init__(disk)

    def append(self, lines: Sequence[LogEntry]) -> None:
        self._lines = lines
        super().append(lines)

    def committed(self) -> None:
        """Pass on that what is being appended is committed."""
        lines, self._lines = self._lines, ()
        self._on_commit(lines)

    def roll_back(self) -> None:
        """Forget the lines of a transaction that failed."""
        self._lines = ()
        super().roll_back()


class SimulatedStore(SQLiteStore):
    """The real store of one process over a disk that others had before."""

    def __init__(
        self, disk: Disk, clock: Clock, on_commit: Callable[[Sequence[LogEntry]], None]
    ) -> None:
        super().__init__(disk, clock)
        self.log = self._simulated_log = SimulatedLog(disk, on_commit)

    def committed(self) -> None:
        self._simulated_log.committed()

    def close(self) -> None:
        """Keep the database for the next start."""
