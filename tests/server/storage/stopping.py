"""Stores that can be stopped in the middle of whatever they do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradwatch_server.storage.postgres.database import PostgresDatabase
from gradwatch_server.storage.rows import StorageError, StorageFault
from gradwatch_server.storage.sqlite.database import SQLiteDatabase
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_server.storage.store import Store


class Killed(BaseException):
    """Raised where the process is killed, in the middle of whatever it did."""


class Stopping:
    """Part of a database whose process can be stopped before or after each write."""

    left = -1
    lost_answers = 0

    def execute(self, sql: str, values: Any = ()) -> int:
        is_writing = sql.startswith(("BEGIN", "COMMIT", "INSERT", "DELETE", "UPDATE"))
        self.count(is_writing)
        changed: int = super().execute(sql, values)  # type: ignore[misc]
        self.count(is_writing)
        if sql == "COMMIT" and self.lost_answers:
            self.lost_answers -= 1
            raise StorageError("the answer was lost", StorageFault.BUSY)
        return changed

    def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        self.count(True)
        super().executemany(sql, rows)  # type: ignore[misc]
        self.count(True)

    def count(self, is_writing: bool) -> None:
        if is_writing and self.left >= 0:
            if self.left == 0:
                raise Killed
            self.left -= 1


class StoppingDatabase(Stopping, SQLiteDatabase):
    """The same of SQLite."""


class StoppingPostgres(Stopping, PostgresDatabase):
    """The same of PostgreSQL."""


class MemoryStore(SQLiteStore):
    """A store whose memory outlives it."""

    def close(self) -> None:
        """Keep the database for who opens it next."""


def database_of(store: Store) -> StoppingDatabase:
    assert isinstance(store, SQLiteStore)
    assert isinstance(store.db, StoppingDatabase)
    return store.db
