"""Rows of the tables of curves: the facts of a chunk, and the body of a table, read in parts."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gradwatch_server.series.encoding import Read
from gradwatch_server.storage.series_store import ChunkFacts
from gradwatch_server.storage.sqlite.faults import storage_errors

FACT_COLUMNS: Final = "level, number, epoch, first_step, last_step, entries, is_closed, upto"
"""The columns that `facts_of` reads."""


def facts_of(row: Sequence[Any]) -> ChunkFacts:
    """Return what the columns `FACT_COLUMNS` of a row say."""
    level, number, epoch, first, last, entries, is_closed, upto = row
    return ChunkFacts(level, number, epoch, first, last, entries, bool(is_closed), upto)


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
