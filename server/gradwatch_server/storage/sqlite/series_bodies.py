"""The body of a table of curves in SQLite, read in parts."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator

from gradwatch_server.series.encoding import Read
from gradwatch_server.storage.sqlite.faults import storage_errors


@contextlib.contextmanager
def open_body(connection: sqlite3.Connection, place: int | None) -> Iterator[Read | None]:
    """Open the body of a table by its place, None if there is none."""
    if place is None:
        yield None
        return
    with (
        storage_errors(),
        connection.blobopen("series_tables", "body", place, readonly=True) as blob,
    ):

        def read(offset: int, length: int) -> bytes:
            with storage_errors():
                blob.seek(min(offset, len(blob)))
                return blob.read(min(length, len(blob)))

        yield read
