"""Connections to SQLite that read, and its errors as those of a store."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any, Final

from gradwatch_server.storage.rows import StorageError, StorageFault

_FAULTS: Final = {
    sqlite3.SQLITE_CORRUPT: StorageFault.DAMAGED,
    sqlite3.SQLITE_NOTADB: StorageFault.DAMAGED,
    sqlite3.SQLITE_FULL: StorageFault.FULL,
    sqlite3.SQLITE_BUSY: StorageFault.BUSY,
    sqlite3.SQLITE_LOCKED: StorageFault.BUSY,
}
"""By primary result code, which is the lowest byte of what SQLite gives."""


@contextlib.contextmanager
def storage_errors() -> Iterator[None]:
    """Raise each error of SQLite inside as a `StorageError` with the same words."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        raise StorageError(str(error), _FAULTS.get(code, StorageFault.FAILED)) from error


class SQLiteReader:
    """A connection that reads."""

    def __init__(self, connection: sqlite3.Connection | None) -> None:
        self._connection = connection

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection itself.

        Raises:
            StorageError: If it is closed.
        """
        if self._connection is None:
            msg = "the database is closed"
            raise StorageError(msg)
        return self._connection

    def row(self, sql: str, values: Any = ()) -> Any:
        """Return the first row that a statement finds, None if there is none."""
        with storage_errors():
            return self.connection.execute(sql, values).fetchone()

    def rows(self, sql: str, values: Any = ()) -> Iterator[Any]:
        """Yield the rows that a statement finds, while they are found."""
        with storage_errors():
            cursor = self.connection.execute(sql, values)
            while (row := cursor.fetchone()) is not None:
                yield row

    def part(self, table: str, column: str, place: int, offset: int, length: int) -> bytes:
        """Return bytes of a value from an offset on, of the row whose id is *place*."""
        with (
            storage_errors(),
            self.connection.blobopen(table, column, place, readonly=True) as blob,
        ):
            first = min(offset, len(blob))
            blob.seek(first)
            return blob.read(min(length, len(blob) - first))
