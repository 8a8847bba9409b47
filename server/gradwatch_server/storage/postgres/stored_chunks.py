"""The chunks of curves of an attempt, for one who reads: a connection of its own."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from gradwatch_server.series.history import Wanted
from gradwatch_server.storage.postgres.connections import Connection
from gradwatch_server.storage.postgres.series_bodies import BODY, open_body
from gradwatch_server.storage.series_store import FACT_COLUMNS, facts_of
from gradwatch_server.storage.stored_series import FoundChunk

FIRST_PAGE: Final = 2
NEXT_PAGES: Final = 32
"""Chunks that are read at once: most readers want one or all."""

_EPOCHS: Final = """
    WITH RECURSIVE epochs (epoch) AS (
        SELECT max(epoch) FROM series_chunks WHERE series = %(series)s AND level = %(level)s
        UNION ALL
        SELECT (
            SELECT max(epoch) FROM series_chunks
            WHERE series = %(series)s AND level = %(level)s AND epoch < epochs.epoch
        ) FROM epochs WHERE epoch IS NOT NULL
    ) SELECT epoch FROM epochs WHERE epoch IS NOT NULL LIMIT %(most)s
"""
"""From the newest on: each is one look into the index, however many chunks it has."""

_OF_EPOCH: Final = "FROM series_chunks WHERE series = %s AND level = %s AND epoch = %s"
_END: Final = f"(SELECT {{}} {_OF_EPOCH} AND entries > 0 ORDER BY last_step {{}} LIMIT 1)"
_ENDS: Final = f"SELECT {_END.format('first_step', 'ASC')}, {_END.format('last_step', 'DESC')}"

_NEWEST: Final = f"SELECT {{}} {_OF_EPOCH} AND number < %s ORDER BY last_step DESC LIMIT %s"

_CHUNKS: Final = (
    f"SELECT head, {BODY}, {FACT_COLUMNS} FROM series_chunks AS c"
    " LEFT JOIN series_tables AS t ON t.chunk = c.id AND t.name = %s"
    " WHERE series = %s AND level = %s AND epoch = %s AND last_step >= %s AND number > %s"
    " AND number <= %s ORDER BY last_step LIMIT %s"
)


class PostgresChunks:
    """The chunks of one attempt.

    Args:
        connection: One that is in a transaction.
        partition: The partition of the run.
        run: Name of the run.
        attempt: Number of the attempt.
    """

    def __init__(self, connection: Connection, partition: int, run: str, attempt: int) -> None:
        self._connection = connection
        select = "SELECT id, layers FROM series WHERE partition = %s AND run = %s AND attempt = %s"
        found = connection.execute(select, (partition, run, attempt)).fetchone()
        self._series: int
        self._layers: bytes
        self._series, self._layers = (-1, b"") if found is None else found

    def layers(self) -> bytes:
        """Return the layers, encoded; nothing if nothing is stored."""
        return self._layers

    def epochs(self, level: int, most: int) -> list[int]:
        """Return up to *most* epochs of which there are chunks of a level, the newest first."""
        values = {"series": self._series, "level": level, "most": most}
        return [epoch for (epoch,) in self._connection.execute(_EPOCHS, values)]

    def ends(self, level: int, epoch: int) -> tuple[int, int] | None:
        """Return the first and the last step of the chunks of a level that have entries."""
        own = self._series, level, epoch
        ((oldest, newest),) = self._rows(_ENDS, *own, *own)
        return None if oldest is None else (oldest, newest)

    def newest_heads(self, level: int, epoch: int, before: int) -> Iterator[tuple[int, bytes]]:
        """Yield entries and head of the chunks with numbers below one, the newest first."""
        page = FIRST_PAGE
        while True:
            select = _NEWEST.format("entries, head, number")
            rows = self._rows(select, self._series, level, epoch, before, page)
            for entries, head, number in rows:
                yield entries, head
                before = number
            if len(rows) < page:
                return
            page = NEXT_PAGES

    def stood_for(self, level: int, epoch: int, before: int) -> tuple[int, int]:
        """Return up to which chunk below, and which step, chunks with such numbers stand for."""
        select = _NEWEST.format("upto, last_step")
        rows = self._rows(select, self._series, level, epoch, before, 1)
        return rows[0] if rows else (-1, -1)

    def chunks(self, wanted: Wanted, level: int, after: int, upto: int) -> Iterator[FoundChunk]:
        """Yield the chunks of a level with numbers in (after, upto], by their steps."""
        own = wanted.table, self._series, level, wanted.epoch
        page = FIRST_PAGE
        while True:
            rows = self._rows(_CHUNKS, *own, wanted.first, after, upto, page)
            for head, place, length, start, *facts in rows:
                body = partial(open_body, self._connection, place, length, start)
                chunk = FoundChunk(facts_of(facts), head, body)
                yield chunk
                after = chunk.facts.number
            if len(rows) < page:
                return
            page = NEXT_PAGES

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        return self._connection.execute(sql, values).fetchall()
