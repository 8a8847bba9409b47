"""The tables of curves: `curves` has a row for each attempt, `blocks` one for each block."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final

from gradwatch_server.curves.facts import BlockFacts, SavedBlock, StoredBlock
from gradwatch_server.storage.curves import CurveSize
from gradwatch_server.storage.sqlite.database import Database
from gradwatch_server.storage.sqlite.faults import storage_errors

_FACTS: Final = "level, number, epoch, first_step, last_step, entries, is_closed, upto"
_OF: Final = "curve = (SELECT id FROM curves WHERE run = ? AND attempt = ?)"

# Conditions about a row `c` of `blocks`.
_STOOD_FOR: Final = (
    "(SELECT entries FROM blocks AS above WHERE above.curve = c.curve"
    " AND above.level = c.level + 1 AND above.upto >= c.number ORDER BY above.number LIMIT 1) > 0"
)
"""Whether a block of the next level has what a block has."""

_NOT_NEWEST: Final = (
    "number < (SELECT max(number) FROM blocks AS other WHERE other.curve = c.curve"
    " AND other.level = c.level)"
)
"""Whether there is a later block of its level."""

_SAVE: Final = (
    f"INSERT INTO blocks (curve, {_FACTS}, num_bytes, head, body)"  # noqa: S608 - a literal
    " VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)"
    " ON CONFLICT (curve, level, number) DO UPDATE SET epoch = ?4, first_step = ?5,"
    " last_step = ?6, entries = ?7, is_closed = ?8, upto = ?9, num_bytes = ?10, head = ?11,"
    " body = ?12"
)

_EPOCHS: Final = (
    "WITH RECURSIVE epochs (epoch) AS ("
    " SELECT max(epoch) FROM blocks WHERE curve = ? AND level = ? UNION ALL"
    " SELECT (SELECT max(epoch) FROM blocks WHERE curve = ? AND level = ?"
    " AND epoch < epochs.epoch) FROM epochs WHERE epoch IS NOT NULL"
    ") SELECT epoch FROM epochs WHERE epoch IS NOT NULL LIMIT ?"
)
"""From the newest on: each is one look into the index, however many blocks it has."""

_END: Final = (
    "(SELECT {} FROM blocks WHERE curve = ? AND level = ? AND epoch = ? AND entries > 0"
    " ORDER BY last_step {} LIMIT 1)"
)
_ENDS: Final = f"SELECT {_END.format('first_step', 'ASC')}, {_END.format('last_step', 'DESC')}"
_OF_LEVEL: Final = "FROM blocks WHERE curve = ? AND level = ?"
_BEFORE: Final = f"{_OF_LEVEL} AND epoch = ? AND number < ? ORDER BY last_step DESC"


class SQLiteCurves:
    """Curves in one database."""

    def __init__(self, db: Database) -> None:
        self._db = db

    @contextlib.contextmanager
    def read(self, run: str, attempt: int) -> Iterator[SQLiteStoredCurves]:
        """Open what is stored of an attempt, as it is at one moment."""
        with self._db.reading() as connection:
            stored = SQLiteStoredCurves(connection, run, attempt)
            if connection.in_transaction:  # the writer's own, of a database in memory
                yield stored
                return
            with storage_errors():
                connection.execute("BEGIN")  # all that is read is of one moment
            try:
                yield stored
            finally:
                connection.rollback()

    def stored(self, run: str, attempt: int) -> SQLiteStoredCurves:
        """Return what is stored of an attempt, as it is at each call."""
        return SQLiteStoredCurves(self._db.connection, run, attempt)

    def save(
        self,
        run: str,
        attempt: int,
        blocks: Sequence[SavedBlock],
        layers: bytes | None = None,
    ) -> None:
        """Write blocks, each in place of what it was, all or none; and the layers, if given."""
        of = run, attempt
        with self._db.transaction():
            self._db.execute(
                "INSERT OR IGNORE INTO curves (run, attempt, layers, num_bytes)"
                " VALUES (?, ?, x'', 0)",
                of,
            )
            if layers is not None:
                update = "UPDATE curves SET layers = ? WHERE run = ? AND attempt = ?"
                self._db.execute(update, (layers, *of))
            (curve,) = self._db.row("SELECT id FROM curves WHERE run = ? AND attempt = ?", of)
            change = sum(self._save(curve, block) for block in blocks)
            update = "UPDATE curves SET num_bytes = num_bytes + ? WHERE id = ?"
            self._db.execute(update, (change, curve))

    def _save(self, curve: int, block: SavedBlock) -> int:
        """Write a block; return how many bytes more it is than what it replaces."""
        own, num_bytes = block.facts, len(block.head) + len(block.body)
        place = curve, own.level, own.number
        before = self._db.row(f"SELECT num_bytes {_OF_LEVEL} AND number = ?", place)
        facts = own.epoch, own.first_step, own.last_step, own.entries, own.is_closed, own.upto
        self._db.execute(_SAVE, (*place, *facts, num_bytes, block.head, block.body))
        return num_bytes - (0 if before is None else int(before[0]))

    def trim(self, run: str, attempt: int, level: int, most: int) -> int:
        """Delete the *most* oldest blocks of a level that the next one stands for; return bytes."""
        return self._delete_oldest(run, attempt, level, most, _STOOD_FOR)

    def drop(self, run: str, attempt: int, level: int, most: int) -> int:
        """Delete the *most* oldest blocks of a level, but not the newest one; return the bytes."""
        return self._delete_oldest(run, attempt, level, most, _NOT_NEWEST)

    def _delete_oldest(self, run: str, attempt: int, level: int, most: int, which: str) -> int:
        select = (
            f"SELECT id, num_bytes FROM blocks AS c WHERE {_OF} AND level = ?"  # noqa: S608
            f" AND {which} ORDER BY number LIMIT ?"
        )
        return self._delete(run, attempt, list(self._db.rows(select, (run, attempt, level, most))))

    def remove(self, run: str, attempt: int, most: int) -> bool:
        """Delete up to *most* blocks of an attempt, and itself with the last; return if any."""
        select = f"SELECT id, num_bytes FROM blocks WHERE {_OF} LIMIT ?"  # noqa: S608
        rows = list(self._db.rows(select, (run, attempt, most)))
        if rows:
            self._delete(run, attempt, rows)
            return True
        with self._db.transaction():
            cursor = self._db.execute(
                "DELETE FROM curves WHERE run = ? AND attempt = ?", (run, attempt)
            )
        return cursor.rowcount > 0

    def _delete(self, run: str, attempt: int, rows: Sequence[tuple[int, int]]) -> int:
        total = sum(num_bytes for _, num_bytes in rows)
        if rows:
            with self._db.transaction():
                ids = [(place,) for place, _ in rows]
                self._db.executemany("DELETE FROM blocks WHERE id = ?", ids)
                self._db.execute(
                    "UPDATE curves SET num_bytes = num_bytes - ? WHERE run = ? AND attempt = ?",
                    (total, run, attempt),
                )
        return total

    def sizes(self, run: str | None = None) -> list[CurveSize]:
        """Return the sizes of all attempts, or of those of one run."""
        select = "SELECT run, attempt, num_bytes FROM curves WHERE run = coalesce(?, run)"
        return [CurveSize(*row) for row in self._db.rows(f"{select} ORDER BY id", (run,))]

    def used_bytes(self) -> int:
        """Return how much room all of it takes."""
        (total,) = self._db.row("SELECT coalesce(sum(num_bytes), 0) FROM curves")
        return int(total) + self._empty_bytes

    @cached_property
    def _empty_bytes(self) -> int:
        """Bytes of the tables and their indices without a row: a page each."""
        select = "SELECT count(*) FROM sqlite_master WHERE tbl_name IN ('curves', 'blocks')"
        (count,) = self._db.row(select)
        return int(count) * self._db.number("page_size")


class SQLiteStoredCurves:
    """The stored blocks of one attempt.

    Args:
        connection: A connection in a transaction, or that of the writer.
        run: Name of the run.
        attempt: Number of the attempt.
    """

    def __init__(self, connection: sqlite3.Connection, run: str, attempt: int) -> None:
        self._connection = connection
        self._of = run, attempt
        self._known_curve = -1

    @property
    def _curve(self) -> int:
        if self._known_curve < 0:
            found = self._row("SELECT id FROM curves WHERE run = ? AND attempt = ?", *self._of)
            self._known_curve = -1 if found is None else int(found[0])
        return self._known_curve

    def layers(self) -> bytes:
        """Return the layers, encoded; nothing if nothing is stored."""
        found = self._row("SELECT layers FROM curves WHERE id = ?", self._curve)
        return b"" if found is None else bytes(found[0])

    def newest(self, level: int, *, is_closed: bool = False) -> BlockFacts | None:
        """Return the newest block of a level, or the newest closed one; None without any."""
        select = f"SELECT {_FACTS} {_OF_LEVEL} AND is_closed >= ? ORDER BY number DESC LIMIT 1"
        row = self._row(select, self._curve, level, is_closed)
        return None if row is None else _facts_of(row)

    def after(self, level: int, epoch: int, number: int, most: int) -> list[BlockFacts]:
        """Return up to *most* blocks of an epoch after a number, oldest first."""
        select = f"SELECT {_FACTS} {_OF_LEVEL} AND epoch = ? AND number > ? ORDER BY number LIMIT ?"
        return [_facts_of(r) for r in self._rows(select, self._curve, level, epoch, number, most)]

    def block(self, level: int, number: int) -> StoredBlock | None:
        """Return one block, None if it is not there."""
        select = f"SELECT id, head, {_FACTS} {_OF_LEVEL} AND number = ?"
        row = self._row(select, self._curve, level, number)
        return None if row is None else self._block(row)

    def blocks(
        self, level: int, epoch: int, first_step: int, after: int, upto: int
    ) -> Iterator[StoredBlock]:
        """Yield the blocks of an epoch with numbers in (after, upto], from a step on, in order."""
        select = (
            f"SELECT id, head, {_FACTS} {_OF_LEVEL} AND epoch = ? AND last_step >= ?"
            " AND number > ? AND number <= ? ORDER BY last_step"
        )
        own = self._curve, level, epoch, first_step, after, upto
        return map(self._block, self._rows(select, *own))

    def heads(self, level: int, epoch: int, before: int) -> Iterator[tuple[int, bytes]]:
        """Yield entries and head of the blocks with numbers below one, the newest first."""
        select = f"SELECT entries, head {_BEFORE}"
        yield from self._rows(select, self._curve, level, epoch, before)

    def epochs(self, level: int, most: int) -> list[int]:
        """Return up to *most* epochs of which there are blocks of a level, the newest first."""
        own = self._curve, level
        return [epoch for (epoch,) in self._rows(_EPOCHS, *own, *own, most)]

    def ends(self, level: int, epoch: int) -> tuple[int, int] | None:
        """Return the first and the last step of the blocks of a level that have entries."""
        own = self._curve, level, epoch
        oldest, newest = self._row(_ENDS, *own, *own)
        return None if oldest is None else (int(oldest), int(newest))

    def stood_for(self, level: int, epoch: int, before: int) -> tuple[int, int]:
        """Return up to which block below, and which step, blocks with such numbers stand for.

        -1 and -1 if there are none.
        """
        select = f"SELECT upto, last_step {_BEFORE} LIMIT 1"
        row = self._row(select, self._curve, level, epoch, before)
        return (-1, -1) if row is None else (int(row[0]), int(row[1]))

    def _block(self, row: Sequence[Any]) -> StoredBlock:
        place, head, *own = row

        def read(offset: int, length: int) -> bytes:
            with (
                storage_errors(),
                self._connection.blobopen("blocks", "body", place, readonly=True) as blob,
            ):
                blob.seek(min(offset, len(blob)))
                return blob.read(min(length, len(blob) - min(offset, len(blob))))

        return StoredBlock(_facts_of(own), head, read)

    def _row(self, sql: str, *values: Any) -> Any:
        with storage_errors():
            return self._connection.execute(sql, values).fetchone()

    def _rows(self, sql: str, *values: Any) -> Iterator[Any]:
        with storage_errors():
            yield from self._connection.execute(sql, values)


def _facts_of(row: Sequence[Any]) -> BlockFacts:
    level, number, epoch, first, last, entries, is_closed, upto = row
    return BlockFacts(level, number, epoch, first, last, entries, bool(is_closed), upto)
