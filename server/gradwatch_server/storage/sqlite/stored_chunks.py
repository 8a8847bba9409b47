"""The chunks of curves of an attempt, for one who reads: a connection of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, NamedTuple

from gradwatch_server.series.encoding import Read
from gradwatch_server.series.history import Wanted
from gradwatch_server.storage.series_store import ChunkFacts
from gradwatch_server.storage.sqlite.faults import storage_errors
from gradwatch_server.storage.sqlite.series_rows import FACT_COLUMNS, facts_of, open_body

_EPOCHS: Final = (
    "WITH RECURSIVE epochs (epoch) AS ("
    " SELECT max(epoch) FROM series_chunks WHERE series = ? AND level = ? UNION ALL"
    " SELECT (SELECT max(epoch) FROM series_chunks WHERE series = ? AND level = ?"
    " AND epoch < epochs.epoch) FROM epochs WHERE epoch IS NOT NULL"
    ") SELECT epoch FROM epochs WHERE epoch IS NOT NULL LIMIT ?"
)
"""From the newest on: each is one look into the index, however many chunks it has."""

_END: Final = (
    "(SELECT {} FROM series_chunks WHERE series = ? AND level = ? AND epoch = ? AND entries > 0"
    " ORDER BY last_step {} LIMIT 1)"
)
_ENDS: Final = f"SELECT {_END.format('first_step', 'ASC')}, {_END.format('last_step', 'DESC')}"

_OF_EPOCH: Final = "FROM series_chunks WHERE series = ? AND level = ? AND epoch = ? AND number < ?"


class FoundChunk(NamedTuple):
    """A stored chunk, and what opens the body of the wanted table: None if there is none."""

    facts: ChunkFacts
    head: bytes
    body: Callable[[], AbstractContextManager[Read | None]]


class SQLiteChunks:
    """The chunks of one attempt.

    Args:
        connection: One that is in a transaction.
        run: Name of the run.
        attempt: Number of the attempt.
    """

    def __init__(self, connection: sqlite3.Connection, run: str, attempt: int) -> None:
        self._connection = connection
        select = "SELECT id, layers FROM series WHERE run = ? AND attempt = ?"
        found = self._row(select, run, attempt)
        self._series: int = -1 if found is None else found[0]
        self._layers: bytes = b"" if found is None else found[1]

    def layers(self) -> bytes:
        """Return the layers, encoded; nothing if nothing is stored."""
        return self._layers

    def epochs(self, level: int, most: int) -> list[int]:
        """Return up to *most* epochs of which there are chunks of a level, the newest first."""
        own = self._series, level
        return [epoch for (epoch,) in self._rows(_EPOCHS, *own, *own, most)]

    def ends(self, level: int, epoch: int) -> tuple[int, int] | None:
        """Return the first and the last step of the chunks of a level that have entries."""
        own = self._series, level, epoch
        oldest, newest = self._row(_ENDS, *own, *own)
        return None if oldest is None else (int(oldest), int(newest))

    def newest_heads(self, level: int, epoch: int, before: int) -> Iterator[tuple[int, bytes]]:
        """Yield entries and head of the chunks with numbers below one, the newest first."""
        select = f"SELECT entries, head {_OF_EPOCH} ORDER BY last_step DESC"
        yield from self._rows(select, self._series, level, epoch, before)

    def stood_for(self, level: int, epoch: int, before: int) -> tuple[int, int]:
        """Return up to which chunk below, and which step, chunks with such numbers stand for.

        -1 and -1 if there are none.
        """
        select = f"SELECT upto, last_step {_OF_EPOCH} ORDER BY last_step DESC LIMIT 1"
        row = self._row(select, self._series, level, epoch, before)
        return (-1, -1) if row is None else (int(row[0]), int(row[1]))

    def chunks(self, wanted: Wanted, level: int, after: int, upto: int) -> Iterator[FoundChunk]:
        """Yield the chunks of a level with numbers in (after, upto], by their steps.

        Of the wanted epoch, from the first wanted step on.
        """
        rows = self._rows(
            f"SELECT head, t.id, {FACT_COLUMNS} FROM series_chunks AS c"  # noqa: S608 - a literal
            " LEFT JOIN series_tables AS t ON t.chunk = c.id AND t.name = ?"
            " WHERE series = ? AND level = ? AND epoch = ? AND last_step >= ? AND number > ?"
            " AND number <= ? ORDER BY last_step",
            *(wanted.table, self._series, level, wanted.epoch, wanted.first, after, upto),
        )
        for head, place, *own in rows:
            yield FoundChunk(facts_of(own), head, partial(open_body, self._connection, place))

    def _row(self, sql: str, *values: Any) -> Any:
        with storage_errors():
            return self._connection.execute(sql, values).fetchone()

    def _rows(self, sql: str, *values: Any) -> Iterator[Any]:
        with storage_errors():
            yield from self._connection.execute(sql, values)
