"""Errors of SQLite as those of a store."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Final

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
