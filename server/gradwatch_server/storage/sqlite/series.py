"""The tables of curves: the writer's connection for what is written, one each for who reads."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, Final, TypeVar

import numpy as np

from gradwatch_server.series import encoding
from gradwatch_server.series.buckets import Buckets
from gradwatch_server.series.encoding import DamagedChunkError, Read
from gradwatch_server.series.history import MAX_EPOCHS, Span, Wanted
from gradwatch_server.series.layers import KnownLayers
from gradwatch_server.series.rows import Rows
from gradwatch_server.storage.series_store import (
    FAN,
    MAX_LEVEL,
    ChunkFacts,
    SavedSeriesChunk,
    SeriesSize,
)
from gradwatch_server.storage.sqlite.database import Database
from gradwatch_server.storage.sqlite.faults import storage_errors

logger = logging.getLogger(__name__)

T = TypeVar("T")

_NO_END: Final = 1 << 62
"""A number that no chunk has."""

_FACTS: Final = "level, number, epoch, first_step, last_step, entries, is_closed, upto"

_OF: Final = "series = (SELECT id FROM series WHERE run = ? AND attempt = ?)"

_STOOD_FOR: Final = (
    "(SELECT entries FROM series_chunks AS above WHERE above.series = c.series"
    " AND above.level = c.level + 1 AND above.upto >= c.number ORDER BY above.number LIMIT 1) > 0"
)
"""Whether a chunk of the next level has what a chunk has."""

_NOT_NEWEST: Final = (
    "number < (SELECT max(number) FROM series_chunks AS other WHERE other.series = c.series"
    " AND other.level = c.level)"
)

_CHUNK: Final = f"SELECT id FROM series_chunks WHERE {_OF} AND level = ? AND number = ?"  # noqa: S608 - literal


def _facts(row: Sequence[Any]) -> ChunkFacts:
    level, number, epoch, first, last, entries, is_closed, upto = row
    return ChunkFacts(level, number, epoch, first, last, entries, bool(is_closed), upto)


class SQLiteSeries:
    """Curves in one database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    # Writing

    def save(
        self,
        run: str,
        attempt: int,
        chunks: Sequence[SavedSeriesChunk],
        layers: bytes | None = None,
    ) -> None:
        """Write chunks, each in place of what it was, all or none; and the layers, if given."""
        with self._db.deferred_sync(), self._db.transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO series (run, attempt, layers, num_bytes)"
                " VALUES (?, ?, x'', 0)",
                (run, attempt),
            )
            if layers is not None:
                self._db.execute(
                    "UPDATE series SET layers = ? WHERE run = ? AND attempt = ?",
                    (layers, run, attempt),
                )
            (series,) = self._db.row(
                "SELECT id FROM series WHERE run = ? AND attempt = ?", (run, attempt)
            )
            for chunk in chunks:
                self._save(series, chunk)

    def _save(self, series: int, chunk: SavedSeriesChunk) -> None:
        own = chunk.facts
        before = self._db.row(
            "SELECT id, num_bytes FROM series_chunks WHERE series = ? AND level = ? AND number = ?",
            (series, own.level, own.number),
        )
        change = chunk.num_bytes - (0 if before is None else before[1])
        values = (
            *(series, own.level, own.number, own.epoch, own.first_step, own.last_step),
            *(own.entries, own.is_closed, own.upto, chunk.num_bytes, chunk.head),
        )
        if before is None:
            cursor = self._db.execute(
                f"INSERT INTO series_chunks (series, {_FACTS}, num_bytes, head)"  # noqa: S608
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            place = cursor.lastrowid
        else:
            place = before[0]
            self._db.execute(
                "UPDATE series_chunks SET epoch = ?, first_step = ?, last_step = ?, entries = ?,"
                " is_closed = ?, upto = ?, num_bytes = ?, head = ? WHERE id = ?",
                (*values[3:], place),
            )
        self._db.executemany(
            "INSERT INTO series_tables (chunk, name, body) VALUES (?1, ?2, ?3)"
            " ON CONFLICT (chunk, name) DO UPDATE SET body = ?3",
            [(place, name, body) for name, body in chunk.tables.items()],
        )
        self._db.execute(
            "UPDATE series SET num_bytes = num_bytes + ? WHERE id = ?", (change, series)
        )

    def trim(self, run: str, attempt: int, level: int, most: int) -> int:
        """Delete the *most* oldest chunks of a level that the next one stands for; return bytes."""
        return self._delete_oldest(run, attempt, level, most, _STOOD_FOR)

    def drop(self, run: str, attempt: int, level: int, most: int) -> int:
        """Delete the *most* oldest chunks of a level, but not the newest one; return the bytes."""
        return self._delete_oldest(run, attempt, level, most, _NOT_NEWEST)

    def _delete_oldest(self, run: str, attempt: int, level: int, most: int, which: str) -> int:
        rows = list(
            self._db.rows(
                f"SELECT id, num_bytes FROM series_chunks AS c WHERE {_OF} AND level = ?"  # noqa: S608
                f" AND {which} ORDER BY number LIMIT ?",
                (run, attempt, level, most),
            )
        )
        self._delete(run, attempt, rows)
        return sum(num_bytes for _, num_bytes in rows)

    def remove(self, run: str, attempt: int, most: int) -> bool:
        """Delete up to *most* chunks of an attempt, and itself with the last; return if any."""
        rows = list(
            self._db.rows(
                f"SELECT id, num_bytes FROM series_chunks WHERE {_OF} LIMIT ?",  # noqa: S608
                (run, attempt, most),
            )
        )
        if rows:
            self._delete(run, attempt, rows)
            return True
        with self._db.deferred_sync(), self._db.transaction():
            cursor = self._db.execute(
                "DELETE FROM series WHERE run = ? AND attempt = ?", (run, attempt)
            )
        return cursor.rowcount > 0

    def _delete(self, run: str, attempt: int, rows: Sequence[tuple[int, int]]) -> None:
        if not rows:
            return
        ids = [(place,) for place, _ in rows]
        with self._db.deferred_sync(), self._db.transaction():
            self._db.executemany("DELETE FROM series_tables WHERE chunk = ?", ids)
            self._db.executemany("DELETE FROM series_chunks WHERE id = ?", ids)
            self._db.execute(
                "UPDATE series SET num_bytes = num_bytes - ? WHERE run = ? AND attempt = ?",
                (sum(num_bytes for _, num_bytes in rows), run, attempt),
            )

    # What the writer reads

    def newest(self, run: str, attempt: int, level: int) -> ChunkFacts | None:
        """Return the newest chunk of a level, None without any."""
        row = self._db.row(
            f"SELECT {_FACTS} FROM series_chunks WHERE {_OF} AND level = ?"  # noqa: S608
            " ORDER BY number DESC LIMIT 1",
            (run, attempt, level),
        )
        return None if row is None else _facts(row)

    def after(self, run: str, attempt: int, level: int, number: int, most: int) -> list[ChunkFacts]:
        """Return up to *most* chunks of a level after a number, oldest first."""
        rows = self._db.rows(
            f"SELECT {_FACTS} FROM series_chunks WHERE {_OF} AND level = ?"  # noqa: S608
            " AND number > ? ORDER BY number LIMIT ?",
            (run, attempt, level, number, most),
        )
        return [_facts(row) for row in rows]

    def head(self, run: str, attempt: int, level: int, number: int) -> bytes:
        """Return the head of a chunk."""
        (found,) = self._db.row(
            f"SELECT head FROM series_chunks WHERE {_OF} AND level = ? AND number = ?",  # noqa: S608
            (run, attempt, level, number),
        )
        return bytes(found)

    def tables(self, run: str, attempt: int, level: int, number: int) -> list[str]:
        """Return the names of the tables of a chunk."""
        rows = self._db.rows(
            f"SELECT name FROM series_tables WHERE chunk = ({_CHUNK})",  # noqa: S608
            (run, attempt, level, number),
        )
        return [name for (name,) in rows]

    @contextlib.contextmanager
    def body(
        self, run: str, attempt: int, level: int, number: int, table: str
    ) -> Iterator[Read | None]:
        """Open the body of a table, None if there is none."""
        row = self._db.row(
            f"SELECT id FROM series_tables WHERE chunk = ({_CHUNK}) AND name = ?",  # noqa: S608
            (run, attempt, level, number, table),
        )
        with _opened(self._db.connection, None if row is None else row[0]) as read:
            yield read

    def sizes(self) -> list[SeriesSize]:
        """Return what there is."""
        rows = self._db.rows("SELECT run, attempt, num_bytes FROM series ORDER BY id")
        return [SeriesSize(*row) for row in rows]

    def used_bytes(self) -> int:
        """Return how much room all of it takes."""
        (total,) = self._db.row("SELECT coalesce(sum(num_bytes), 0) FROM series")
        return int(total) + self._empty_bytes

    @cached_property
    def _empty_bytes(self) -> int:
        """What the tables and their indices take without a row: a page each."""
        (count,) = self._db.row("SELECT count(*) FROM sqlite_master WHERE tbl_name GLOB 'series*'")
        return int(count) * self._db.number("page_size")

    # For any thread

    @contextlib.contextmanager
    def read(self, run: str, attempt: int, before: int | None) -> Iterator[StoredSQLiteSeries]:
        """Open what is stored of an attempt, without chunks of level 0 from *before* on."""
        with self._db.reading() as connection:
            if connection.in_transaction:  # the writer's own, of a database in memory
                yield StoredSQLiteSeries(connection, run, attempt, before)
                return
            with storage_errors():
                connection.execute("BEGIN")  # all that is read is of one moment
            try:
                yield StoredSQLiteSeries(connection, run, attempt, before)
            finally:
                connection.rollback()


@contextlib.contextmanager
def _opened(connection: sqlite3.Connection, place: int | None) -> Iterator[Read | None]:
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


class StoredSQLiteSeries:
    """What is stored of one attempt, as it stood when it was opened.

    Args:
        connection: One that is in a transaction.
        run: Name of the run.
        attempt: Number of the attempt.
        before: The chunk of level 0 from which on it is read from memory; None for all from here.
    """

    def __init__(
        self, connection: sqlite3.Connection, run: str, attempt: int, before: int | None
    ) -> None:
        self._connection = connection
        self._before = _NO_END if before is None else before
        self._told = False
        select = "SELECT id, layers FROM series WHERE run = ? AND attempt = ?"
        found = self._row(select, run, attempt)
        self._series: int = -1 if found is None else found[0]
        self._layers: bytes = b"" if found is None else found[1]

    def layers(self) -> KnownLayers:
        """Return the layers, none if nothing is stored."""
        if not self._layers:
            return KnownLayers()
        try:
            return encoding.decode_layers(self._layers)
        except DamagedChunkError as error:
            self._tell(error)
            return KnownLayers()

    def spans(self) -> list[Span]:
        """Return the newest epochs, oldest first."""
        spans: dict[int, Span] = {}
        for level in range(MAX_LEVEL + 1):
            for (epoch,) in self._rows(
                "SELECT DISTINCT epoch FROM series_chunks WHERE series = ? AND level = ?"
                " ORDER BY epoch DESC LIMIT ?",
                self._series,
                level,
                MAX_EPOCHS,
            ):
                ends = self._ends(level, epoch)
                if ends is None:
                    continue
                first, last = ends
                known = spans.get(epoch, Span(epoch, first, last))
                spans[epoch] = Span(epoch, min(first, known.first), max(last, known.last))
        return [spans[epoch] for epoch in sorted(spans)]

    def _ends(self, level: int, epoch: int) -> tuple[int, int] | None:
        """Return the first and the last step of the chunks of a level, None without any."""
        select = (
            "SELECT first_step, last_step FROM series_chunks"
            " WHERE series = ? AND level = ? AND epoch = ? AND entries > 0"
            " ORDER BY last_step {} LIMIT 1"
        )
        own = self._series, level, epoch
        oldest, newest = (self._row(select.format(order), *own) for order in ("ASC", "DESC"))
        return None if oldest is None else (int(oldest[0]), int(newest[1]))

    def finest(self, epoch: int, first: int, _last: int) -> int:
        """Return the smallest width in which steps from *first* on are there that were kept."""
        begins: list[tuple[int, int]] = []
        for level in range(MAX_LEVEL + 1):
            ends = self._ends(level, epoch)
            if ends is not None:
                begins.append((ends[0], FAN**level))
        if not begins:
            return 1
        oldest = min(begins)[0]
        return min(width for begin, width in begins if begin <= max(first, oldest))

    def newest(self, epoch: int, num_rows: int) -> int | None:
        """Return the first step of the newest rows, so many or all there are; None without any."""
        left, found = num_rows, None
        rows = self._rows(
            "SELECT entries, head FROM series_chunks WHERE series = ? AND level = 0 AND epoch = ?"
            " AND number < ? ORDER BY last_step DESC",
            self._series,
            epoch,
            self._before,
        )
        for entries, head in rows:
            arrays = self._try(partial(encoding.decode_arrays, head))
            if arrays is not None and len(arrays[0]):
                found = int(arrays[0][-min(left, len(arrays[0]))])
            left -= entries
            if left <= 0:
                break
        return found

    def row(self, wanted: Wanted) -> Rows | None:
        """Return the row of the first wanted step as it was, None if it is not kept."""
        return next(self._read_rows(wanted, -1, self._before - 1), None)

    def offset(self, epoch: int, step: int) -> int | None:
        """Return the place in the log at which a step closed, None if it is not known."""
        wanted = Wanted(epoch, "", np.zeros(0, dtype=np.int64), step, step)
        for _, head, _ in self._chunks(wanted, 0, -1, self._before - 1):
            if head is not None and step in head[0]:
                return int(head[3][np.flatnonzero(head[0] == step)[0]])
        return None

    def pieces(self, wanted: Wanted, width: int) -> Iterator[Buckets]:
        """Yield buckets of at most a width, oldest first."""
        level = 0
        while level < MAX_LEVEL and width >= FAN ** (level + 1):
            level += 1
        yield from self._pieces(wanted, level, -1, _NO_END, width)

    def _pieces(
        self, wanted: Wanted, level: int, after: int, upto: int, width: int
    ) -> Iterator[Buckets]:
        """Yield those of the chunks of a level with numbers in (after, upto], and of what follows.

        Where a chunk only says that those below are to be read, they are; so are those that none
        stands for yet.
        """
        if level == 0:
            rows = list(self._read_rows(wanted, after, min(upto, self._before - 1)))
            if rows:
                yield Buckets.of(Rows.joined(rows), width)
            return
        for facts, head, place in self._chunks(wanted, level, after, upto):
            if facts.entries:
                buckets = self._read_buckets(facts, head, place, wanted)
                if buckets is not None:
                    own = buckets.width
                    yield buckets.within(wanted.first // own, wanted.last // own)
            else:
                begin = self._upto(wanted.epoch, level, facts.number)
                yield from self._pieces(wanted, level - 1, begin, facts.upto, width)
        if upto == _NO_END:
            begin = self._upto(wanted.epoch, level, None)
            yield from self._pieces(wanted, level - 1, begin, upto, width)

    def _upto(self, epoch: int, level: int, before: int | None) -> int:
        """Return up to which chunk below those of a level stand for, before a number or all."""
        row = self._row(
            "SELECT upto FROM series_chunks WHERE series = ? AND level = ? AND epoch = ?"
            " AND number < ? ORDER BY last_step DESC LIMIT 1",
            self._series,
            level,
            epoch,
            _NO_END if before is None else before,
        )
        return -1 if row is None else int(row[0])

    def _chunks(
        self, wanted: Wanted, level: int, after: int, upto: int
    ) -> Iterator[tuple[ChunkFacts, encoding.Arrays | None, int | None]]:
        """Yield the chunks of a level that have some of the wanted steps, oldest first.

        Each with its head, None if that is damaged, and the place of the wanted table, None if it
        has none.
        """
        rows = self._rows(
            f"SELECT head, t.id, {_FACTS} FROM series_chunks AS c"  # noqa: S608 - a literal
            " LEFT JOIN series_tables AS t ON t.chunk = c.id AND t.name = ?"
            " WHERE series = ? AND level = ? AND epoch = ? AND last_step >= ? AND number > ?"
            " AND number <= ? ORDER BY last_step",
            *(wanted.table, self._series, level, wanted.epoch, wanted.first, after, upto),
        )
        for head, place, *own in rows:
            facts = _facts(own)
            if facts.first_step > wanted.last:
                return
            yield facts, self._try(partial(encoding.decode_arrays, head)), place

    def _read_rows(self, wanted: Wanted, after: int, upto: int) -> Iterator[Rows]:
        """Yield the wanted rows of the chunks with numbers in (after, upto], oldest first."""
        for facts, head, place in self._chunks(wanted, 0, after, upto):
            rows = None if head is None else self._decode_rows(facts, head, place, wanted)
            found = None if rows is None else rows.within(wanted.first, wanted.last)
            if found is not None and len(found.steps):
                yield found

    def _decode_rows(
        self, facts: ChunkFacts, head: encoding.Arrays, place: int | None, wanted: Wanted
    ) -> Rows | None:
        with _opened(self._connection, place) as read:
            if read is None:
                shape = (facts.entries, len(wanted.items))
                values, known = np.full(shape, np.nan), np.zeros(shape, dtype=np.bool_)
                return Rows(head[0], head[1], head[2], values, known)
            return self._try(lambda: encoding.decode_rows(head, read, wanted.items))

    def _read_buckets(
        self, facts: ChunkFacts, head: encoding.Arrays | None, place: int | None, wanted: Wanted
    ) -> Buckets | None:
        with _opened(self._connection, place) as read:
            if read is None or head is None:
                return None
            width = FAN**facts.level
            return self._try(lambda: encoding.decode_buckets(head, width, read, wanted.items))

    def _try(self, decode: Callable[[], T]) -> T | None:
        """Return what is decoded; None if it is not what was written, which is told once."""
        try:
            return decode()
        except (DamagedChunkError, ValueError, TypeError) as error:
            self._tell(error)
            return None

    def _tell(self, error: Exception) -> None:
        if not self._told:
            logger.warning("a chunk of curves is left out (told once): %s", error)
        self._told = True

    def _row(self, sql: str, *values: Any) -> Any:
        with storage_errors():
            return self._connection.execute(sql, values).fetchone()

    def _rows(self, sql: str, *values: Any) -> Iterator[Any]:
        with storage_errors():
            yield from self._connection.execute(sql, values)
