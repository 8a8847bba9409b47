"""The body of a table of curves in PostgreSQL, read in parts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from gradwatch_server.series.encoding import HEADER_BYTES, Read
from gradwatch_server.storage.postgres.connections import Connection

BODY: Final = f"t.id, octet_length(t.body), substring(t.body FROM 1 FOR {HEADER_BYTES})"
"""The columns that `open_body` goes on from: small bodies are read with them."""

_PART: Final = "SELECT substring(body FROM %s FOR %s) FROM series_tables WHERE id = %s"


@contextlib.contextmanager
def open_body(
    connection: Connection, place: int | None, length: int, start: bytes
) -> Iterator[Read | None]:
    """Open the body of a table, None if there is none.

    Args:
        connection: Reads what is asked for beyond the start.
        place: Its place, None if there is none.
        length: Its bytes.
        start: The first of them.
    """
    if place is None:
        yield None
        return

    def read(offset: int, count: int) -> bytes:
        end = min(offset + count, length)
        if end <= max(offset, len(start)):
            return start[offset:end]
        row = connection.execute(_PART, (offset + 1, end - offset, place)).fetchone()
        return b"" if row is None else bytes(row[0])

    yield read
