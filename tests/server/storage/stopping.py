"""Stores that can be stopped in the middle of whatever they do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gradwatch_server.storage.sqlite.database import Database
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_server.storage.store import Store


class Killed(BaseException):
    """Raised where the process is killed, in the middle of whatever it did."""


class StoppingDatabase(Database):
    """A database whose process can be stopped before or after each statement that writes."""

    left = -1

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        is_writing = sql.startswith(("BEGIN", "COMMIT", "INSERT", "DELETE", "UPDATE"))
        self.count(is_writing)
        cursor = super().execute(sql, parameters)
        self.count(is_writing)
        return cursor

    def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        self.count(True)
        super().executemany(sql, rows)
        self.count(True)

    def count(self, is_writing: bool) -> None:
        """Be stopped here if it is time."""
        if is_writing and self.left >= 0:
            if self.left == 0:
                raise Killed
            self.left -= 1


class MemoryStore(SQLiteStore):
    """A store whose memory outlives it."""

    def close(self) -> None:
        """Keep the database for who opens it next."""


def database_of(store: Store) -> StoppingDatabase:
    assert isinstance(store, SQLiteStore)
    assert isinstance(store.db, StoppingDatabase)
    return store.db
