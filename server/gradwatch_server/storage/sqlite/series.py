"""The tables of curves: what is written, and read by the one who writes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final

from gradwatch_server.series.encoding import Read
from gradwatch_server.storage.series_store import (
    ChunkFacts,
    SavedSeriesChunk,
    SeriesSize,
    Track,
)
from gradwatch_server.storage.sqlite.database import Database
from gradwatch_server.storage.sqlite.faults import storage_errors
from gradwatch_server.storage.sqlite.series_rows import FACT_COLUMNS, facts_of, open_body
from gradwatch_server.storage.sqlite.stored_chunks import SQLiteChunks
from gradwatch_server.storage.sqlite.stored_series import StoredChunks

_OF: Final = "series = (SELECT id FROM series WHERE run = ? AND attempt = ?)"

_CHUNK: Final = f"SELECT id FROM series_chunks WHERE {_OF} AND level = ? AND number = ?"  # noqa: S608 - literal

# Conditions about a row `c` of `series_chunks`.
_STOOD_FOR: Final = (
    "(SELECT entries FROM series_chunks AS above WHERE above.series = c.series"
    " AND above.level = c.level + 1 AND above.upto >= c.number ORDER BY above.number LIMIT 1) > 0"
)
"""Whether a chunk of the next level has what a chunk has."""

_NOT_NEWEST: Final = (
    "number < (SELECT max(number) FROM series_chunks AS other WHERE other.series = c.series"
    " AND other.level = c.level)"
)
"""Whether there is a later chunk of its level."""


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
                f"INSERT INTO series_chunks (series, {FACT_COLUMNS}, num_bytes, head)"  # noqa: S608
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

    def layers(self, run: str, attempt: int) -> bytes:
        """Return the layers of an attempt, encoded; none if nothing is stored."""
        row = self._db.row(
            "SELECT layers FROM series WHERE run = ? AND attempt = ?", (run, attempt)
        )
        return b"" if row is None else bytes(row[0])

    def newest(self, run: str, attempt: int, level: int) -> ChunkFacts | None:
        """Return the newest chunk of a level, None without any."""
        row = self._db.row(
            f"SELECT {FACT_COLUMNS} FROM series_chunks WHERE {_OF} AND level = ?"  # noqa: S608
            " ORDER BY number DESC LIMIT 1",
            (run, attempt, level),
        )
        return None if row is None else facts_of(row)

    def after(self, run: str, attempt: int, level: int, number: int, most: int) -> list[ChunkFacts]:
        """Return up to *most* chunks of a level after a number, oldest first."""
        rows = self._db.rows(
            f"SELECT {FACT_COLUMNS} FROM series_chunks WHERE {_OF} AND level = ?"  # noqa: S608
            " AND number > ? ORDER BY number LIMIT ?",
            (run, attempt, level, number, most),
        )
        return [facts_of(row) for row in rows]

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
        with open_body(self._db.connection, None if row is None else row[0]) as read:
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
        """Bytes of the tables and their indices without a row: a page each."""
        (count,) = self._db.row("SELECT count(*) FROM sqlite_master WHERE tbl_name GLOB 'series*'")
        return int(count) * self._db.number("page_size")

    # For any thread

    @contextlib.contextmanager
    def read(
        self, run: str, attempt: int, before: int | None, gains_before: int | None = None
    ) -> Iterator[tuple[StoredChunks, StoredChunks]]:
        """Open what is stored of an attempt, frames and gains, as it is at one moment."""
        begins = ((Track.FRAMES, before), (Track.GAINS, gains_before))
        with self._db.reading() as connection:
            source = SQLiteChunks(connection, run, attempt)
            frames, gains = (StoredChunks(source, own, track) for track, own in begins)
            if connection.in_transaction:  # the writer's own, of a database in memory
                yield frames, gains
                return
            with storage_errors():
                connection.execute("BEGIN")  # all that is read is of one moment
            try:
                yield frames, gains
            finally:
                connection.rollback()
