"""The tables of curves: what is written, and read by the one who writes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from gradwatch_server.series.encoding import Read
from gradwatch_server.storage.chunk_conditions import NOT_NEWEST, STOOD_FOR
from gradwatch_server.storage.postgres.connections import Connection, execute_all
from gradwatch_server.storage.postgres.database import Database, Fence
from gradwatch_server.storage.postgres.known_bytes import KnownBytes
from gradwatch_server.storage.postgres.series_bodies import BODY, open_body
from gradwatch_server.storage.postgres.stored_chunks import PostgresChunks
from gradwatch_server.storage.series_store import (
    FACT_COLUMNS,
    ChunkFacts,
    SavedSeriesChunk,
    SeriesSize,
    Track,
    facts_of,
)
from gradwatch_server.storage.stored_series import StoredChunks

_OF_ATTEMPT: Final = "partition = %s AND run = %s AND attempt = %s"
_OF: Final = f"series = (SELECT id FROM series WHERE {_OF_ATTEMPT})"
_CHUNK: Final = f"FROM series_chunks WHERE {_OF} AND level = %s AND number = %s"

# The no-op of the first branch is what lets the id of a row that was there be returned.
_PUT_SERIES: Final = """
    INSERT INTO series (partition, run, attempt, layers, num_bytes) VALUES (%s, %s, %s, %s, 0)
    ON CONFLICT (partition, run, attempt) DO UPDATE SET layers = coalesce(%s, series.layers)
    RETURNING id
"""

_SIZES: Final = """
    SELECT level, number, num_bytes FROM series_chunks
    JOIN unnest(%s::integer[], %s::bigint[]) AS own (level, number) USING (level, number)
    WHERE series = %s
"""

_PUT_CHUNK: Final = f"""
    INSERT INTO series_chunks (series, {FACT_COLUMNS}, num_bytes, head)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (series, level, number) DO UPDATE SET epoch = excluded.epoch,
    first_step = excluded.first_step, last_step = excluded.last_step,
    entries = excluded.entries, is_closed = excluded.is_closed, upto = excluded.upto,
    num_bytes = excluded.num_bytes, head = excluded.head
"""

_PUT_TABLE: Final = """
    INSERT INTO series_tables (chunk, name, body) VALUES (
        (SELECT id FROM series_chunks WHERE series = %s AND level = %s AND number = %s), %s, %s)
    ON CONFLICT (chunk, name) DO UPDATE SET body = excluded.body
"""


class PostgresSeries:
    """Curves of the runs of one partition."""

    def __init__(self, db: Database, fence: Fence) -> None:
        self._db = db
        self._fence = fence
        self._bytes = KnownBytes(self._measure)

    def _key(self, run: str, attempt: int) -> tuple[int, str, int]:
        return self._fence.partition, run, attempt

    # Writing

    def save(
        self,
        run: str,
        attempt: int,
        chunks: Sequence[SavedSeriesChunk],
        layers: bytes | None = None,
    ) -> None:
        """Write chunks, each in place of what it was, all or none; and the layers, if given."""
        with self._bytes.changing() as change, self._db.writing(self._fence) as connection:
            values = (*self._key(run, attempt), layers or b"", layers)
            ((series,),) = connection.execute(_PUT_SERIES, values).fetchall()
            if chunks:
                change(self._save(connection, series, chunks))

    def _save(self, connection: Connection, series: int, chunks: Sequence[SavedSeriesChunk]) -> int:
        """Write chunks of an attempt; return how many bytes more it has."""
        places = [(own.facts.level, own.facts.number) for own in chunks]
        levels, numbers = map(list, zip(*places, strict=True))
        before = connection.execute(_SIZES, (levels, numbers, series)).fetchall()
        change: int = sum(own.num_bytes for own in chunks) - sum(row[2] for row in before)
        rows = [
            (
                *(series, it.level, it.number, it.epoch, it.first_step, it.last_step, it.entries),
                *(it.is_closed, it.upto, own.num_bytes, own.head),
            )
            for own in chunks
            for it in [own.facts]
        ]
        tables = [
            (series, own.facts.level, own.facts.number, name, body)
            for own in chunks
            for name, body in own.tables.items()
        ]
        execute_all(connection, _PUT_CHUNK, rows)
        execute_all(connection, _PUT_TABLE, tables)
        add = "UPDATE series SET num_bytes = num_bytes + %s WHERE id = %s"
        connection.execute(add, (change, series))
        return change

    def trim(self, run: str, attempt: int, level: int, most: int) -> int:
        """Delete the *most* oldest chunks of a level that the next one stands for; return bytes."""
        return self._delete_oldest(run, attempt, level, most, STOOD_FOR)

    def drop(self, run: str, attempt: int, level: int, most: int) -> int:
        """Delete the *most* oldest chunks of a level, but not the newest one; return the bytes."""
        return self._delete_oldest(run, attempt, level, most, NOT_NEWEST)

    def _delete_oldest(self, run: str, attempt: int, level: int, most: int, which: str) -> int:
        rows = self._db.rows(
            f"SELECT id, num_bytes FROM series_chunks AS c WHERE {_OF} AND level = %s"
            f" AND {which} ORDER BY number LIMIT %s",
            *(*self._key(run, attempt), level, most),
        )
        return self._delete(run, attempt, rows)

    def remove(self, run: str, attempt: int, most: int) -> bool:
        """Delete up to *most* chunks of an attempt, and itself with the last; return if any."""
        select = f"SELECT id, num_bytes FROM series_chunks WHERE {_OF} LIMIT %s"
        rows = self._db.rows(select, *self._key(run, attempt), most)
        if rows:
            self._delete(run, attempt, rows)
            return True
        with self._db.writing(self._fence) as connection:
            delete = f"DELETE FROM series WHERE {_OF_ATTEMPT}"
            return connection.execute(delete, self._key(run, attempt)).rowcount > 0

    def _delete(self, run: str, attempt: int, rows: Sequence[tuple[int, int]]) -> int:
        """Delete chunks with their tables; return the bytes."""
        num_bytes = sum(own for _, own in rows)
        if rows:
            with self._bytes.changing() as change, self._db.writing(self._fence) as connection:
                delete = "DELETE FROM series_chunks WHERE id = ANY(%s)"
                connection.execute(delete, ([place for place, _ in rows],))
                connection.execute(
                    f"UPDATE series SET num_bytes = num_bytes - %s WHERE {_OF_ATTEMPT}",
                    (num_bytes, *self._key(run, attempt)),
                )
                change(-num_bytes)
        return num_bytes

    # What the writer reads

    def layers(self, run: str, attempt: int) -> bytes:
        """Return the layers of an attempt, encoded; none if nothing is stored."""
        select = f"SELECT layers FROM series WHERE {_OF_ATTEMPT}"
        row = self._db.row(select, *self._key(run, attempt))
        return b"" if row is None else bytes(row[0])

    def newest(self, run: str, attempt: int, level: int) -> ChunkFacts | None:
        """Return the newest chunk of a level, None without any."""
        row = self._db.row(
            f"SELECT {FACT_COLUMNS} FROM series_chunks WHERE {_OF} AND level = %s"
            " ORDER BY number DESC LIMIT 1",
            *(*self._key(run, attempt), level),
        )
        return None if row is None else facts_of(row)

    def after(self, run: str, attempt: int, level: int, number: int, most: int) -> list[ChunkFacts]:
        """Return up to *most* chunks of a level after a number, oldest first."""
        rows = self._db.rows(
            f"SELECT {FACT_COLUMNS} FROM series_chunks WHERE {_OF} AND level = %s"
            " AND number > %s ORDER BY number LIMIT %s",
            *(*self._key(run, attempt), level, number, most),
        )
        return [facts_of(row) for row in rows]

    def head(self, run: str, attempt: int, level: int, number: int) -> bytes:
        """Return the head of a chunk."""
        (found,) = self._db.row(f"SELECT head {_CHUNK}", *self._key(run, attempt), level, number)
        return bytes(found)

    def tables(self, run: str, attempt: int, level: int, number: int) -> list[str]:
        """Return the names of the tables of a chunk."""
        rows = self._db.rows(
            f"SELECT name FROM series_tables WHERE chunk = (SELECT id {_CHUNK}) ORDER BY id",
            *(*self._key(run, attempt), level, number),
        )
        return [name for (name,) in rows]

    @contextlib.contextmanager
    def body(
        self, run: str, attempt: int, level: int, number: int, table: str
    ) -> Iterator[Read | None]:
        """Open the body of a table, None if there is none."""
        of_table = f"t.chunk = (SELECT id {_CHUNK}) AND t.name = %s"
        select = f"SELECT {BODY} FROM series_tables AS t WHERE {of_table}"
        values: tuple[Any, ...] = (*self._key(run, attempt), level, number, table)
        with self._db.reading() as connection:
            place, length, start = connection.execute(select, values).fetchone() or (None, 0, b"")
            with open_body(connection, place, length, start) as read:
                yield read

    def sizes(self) -> list[SeriesSize]:
        """Return what there is."""
        select = "SELECT run, attempt, num_bytes FROM series WHERE partition = %s ORDER BY id"
        return [SeriesSize(*row) for row in self._db.rows(select, self._fence.partition)]

    def used_bytes(self) -> int:
        """Return how much room all of it takes."""
        return self._bytes.get()

    def _measure(self) -> int:
        select = "SELECT coalesce(sum(num_bytes), 0) FROM series WHERE partition = %s"
        (total,) = self._db.row(select, self._fence.partition)
        return int(total)

    # For any thread

    @contextlib.contextmanager
    def read(
        self, run: str, attempt: int, before: int | None, gains_before: int | None = None
    ) -> Iterator[tuple[StoredChunks, StoredChunks]]:
        """Open what is stored of an attempt, frames and gains, as it is at one moment."""
        with self._db.snapshot() as connection:
            source = PostgresChunks(connection, *self._key(run, attempt))
            frames = StoredChunks(source, before, Track.FRAMES)
            yield frames, StoredChunks(source, gains_before, Track.GAINS)
