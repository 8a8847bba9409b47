"""The tables of curves: `curves` has a row for each attempt, `blocks` one for each block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from gradwatch_server.curves.facts import BlockFacts, SavedBlock, StoredBlock
from gradwatch_server.storage.database import Database, SQLReader

_FACTS: Final = "level, number, epoch, first_step, last_step, entries, is_closed, upto"
_UPDATED: Final = (
    *("epoch", "first_step", "last_step", "entries", "is_closed", "upto"),
    *("num_bytes", "head", "body"),
)
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
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (curve, level, number) DO UPDATE SET "
    + ", ".join(f"{name} = excluded.{name}" for name in _UPDATED)
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
_NUM_TREES: Final = 5
"""Tables of curves and their indices; without a row each takes a page."""

_OF_LEVEL: Final = "FROM blocks WHERE curve = ? AND level = ?"
_BEFORE: Final = f"{_OF_LEVEL} AND epoch = ? AND number < ? ORDER BY last_step DESC"


class CurveSize(NamedTuple):
    """Bytes of the curves of one attempt."""

    run: str
    attempt: int
    num_bytes: int


class CurveStore:
    """Curves in one database. `read` is for any thread, all else for the one that writes."""

    def __init__(self, db: Database) -> None:
        self._db = db

    @contextlib.contextmanager
    def read(self, run: str, attempt: int) -> Iterator[StoredBlocks]:
        """Open what is stored of an attempt, as it is at one moment."""
        with self._db.reading() as reader:
            yield StoredBlocks(reader, run, attempt)

    def stored(self, run: str, attempt: int) -> StoredBlocks:
        """Return what is stored of an attempt, as it is at each call."""
        return StoredBlocks(self._db, run, attempt)

    def save(
        self, run: str, attempt: int, blocks: Sequence[SavedBlock], layers: bytes | None = None
    ) -> None:
        """Write blocks, each in place of what it was, all or none; and the layers, if given."""
        of = run, attempt
        with self._db.transaction():
            self._db.execute(
                "INSERT INTO curves (run, attempt, layers, num_bytes) VALUES (?, ?, ?, 0)"
                " ON CONFLICT (run, attempt) DO NOTHING",
                (*of, b""),
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
        block_facts, num_bytes = block.facts, len(block.head) + len(block.body)
        place = curve, block_facts.level, block_facts.number
        before = self._db.row(f"SELECT num_bytes {_OF_LEVEL} AND number = ?", place)
        facts = (
            block_facts.epoch,
            block_facts.first_step,
            block_facts.last_step,
            block_facts.entries,
            int(block_facts.is_closed),
            block_facts.upto,
        )
        self._db.execute(_SAVE, (*place, *facts, num_bytes, block.head, block.body))
        return num_bytes - (0 if before is None else int(before[0]))

    def trim(self, run: str, attempt: int, level: int, limit: int) -> int:
        """Delete the *limit* oldest blocks that the next level stands for; return the bytes."""
        return self._delete_oldest(run, attempt, level, limit, _STOOD_FOR)

    def drop(self, run: str, attempt: int, level: int, limit: int) -> int:
        """Delete the *limit* oldest blocks of a level, but not the newest one; return the bytes."""
        return self._delete_oldest(run, attempt, level, limit, _NOT_NEWEST)

    def _delete_oldest(self, run: str, attempt: int, level: int, limit: int, which: str) -> int:
        select = (
            f"SELECT id, num_bytes FROM blocks AS c WHERE {_OF} AND level = ?"  # noqa: S608
            f" AND {which} ORDER BY number LIMIT ?"
        )
        return self._delete(run, attempt, list(self._db.rows(select, (run, attempt, level, limit))))

    def remove(self, run: str, attempt: int, limit: int) -> bool:
        """Delete up to *limit* blocks of an attempt, and itself with the last; return if any."""
        select = f"SELECT id, num_bytes FROM blocks WHERE {_OF} LIMIT ?"  # noqa: S608
        rows = list(self._db.rows(select, (run, attempt, limit)))
        if rows:
            self._delete(run, attempt, rows)
            return True
        with self._db.transaction():
            delete = "DELETE FROM curves WHERE run = ? AND attempt = ?"
            return self._db.execute(delete, (run, attempt)) > 0

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
        select = "SELECT run, attempt, num_bytes FROM curves WHERE run = coalesce(?, run)"
        return [CurveSize(*row) for row in self._db.rows(f"{select} ORDER BY id", (run,))]

    def used_bytes(self) -> int:
        """Return how much room all of it takes."""
        (total,) = self._db.row("SELECT coalesce(sum(num_bytes), 0) FROM curves")
        return int(total) + _NUM_TREES * self._db.page_bytes


class StoredBlocks:
    """The stored blocks of one attempt.

    Args:
        reader: A connection that sees one moment, or that of the writer.
    """

    def __init__(self, reader: SQLReader, run: str, attempt: int) -> None:
        self._reader = reader
        self._of = run, attempt
        self._known_curve = -1

    @property
    def _curve(self) -> int:
        if self._known_curve < 0:
            row = self._row("SELECT id FROM curves WHERE run = ? AND attempt = ?", *self._of)
            self._known_curve = -1 if row is None else int(row[0])
        return self._known_curve

    def layers(self) -> bytes:
        """Return the layers, encoded; nothing if nothing is stored."""
        row = self._row("SELECT layers FROM curves WHERE id = ?", self._curve)
        return b"" if row is None else bytes(row[0])

    def newest(self, level: int, *, is_closed: bool = False) -> BlockFacts | None:
        """Return the newest block of a level, or the newest closed one; None without any."""
        select = f"SELECT {_FACTS} {_OF_LEVEL} AND is_closed >= ? ORDER BY number DESC LIMIT 1"
        row = self._row(select, self._curve, level, int(is_closed))
        return None if row is None else _facts_of(row)

    def after(self, level: int, epoch: int, number: int, limit: int) -> list[BlockFacts]:
        """Return up to *limit* blocks of an epoch after a number, oldest first."""
        select = f"SELECT {_FACTS} {_OF_LEVEL} AND epoch = ? AND number > ? ORDER BY number LIMIT ?"
        return [_facts_of(r) for r in self._rows(select, self._curve, level, epoch, number, limit)]

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
        key = self._curve, level, epoch, first_step, after, upto
        return map(self._block, self._rows(select, *key))

    def heads(self, level: int, epoch: int, before: int) -> Iterator[tuple[int, bytes]]:
        """Yield entries and head of the blocks with numbers below one, the newest first."""
        select = f"SELECT entries, head {_BEFORE}"
        yield from self._rows(select, self._curve, level, epoch, before)

    def epochs(self, level: int, limit: int) -> list[int]:
        """Return up to *limit* epochs of which there are blocks of a level, the newest first."""
        key = self._curve, level
        return [epoch for (epoch,) in self._rows(_EPOCHS, *key, *key, limit)]

    def ends(self, level: int, epoch: int) -> tuple[int, int] | None:
        """Return the first and the last step of the blocks of a level that have entries."""
        key = self._curve, level, epoch
        oldest, newest = self._row(_ENDS, *key, *key)
        return None if oldest is None else (int(oldest), int(newest))

    def stood_for(self, level: int, epoch: int, before: int) -> tuple[int, int]:
        """Return up to which block below, and which step, blocks with such numbers stand for.

        -1 and -1 if there are none.
        """
        select = f"SELECT upto, last_step {_BEFORE} LIMIT 1"
        row = self._row(select, self._curve, level, epoch, before)
        return (-1, -1) if row is None else (int(row[0]), int(row[1]))

    def _block(self, row: Sequence[Any]) -> StoredBlock:
        place, head, *rest = row

        def read(offset: int, length: int) -> bytes:
            return self._reader.part("blocks", "body", place, offset, length)

        return StoredBlock(_facts_of(rest), head, read)

    def _row(self, sql: str, *values: Any) -> Any:
        return self._reader.row(sql, values)

    def _rows(self, sql: str, *values: Any) -> Iterator[Any]:
        return self._reader.rows(sql, values)


def _facts_of(row: Sequence[Any]) -> BlockFacts:
    level, number, epoch, first, last, entries, is_closed, upto = row
    return BlockFacts(level, number, epoch, first, last, entries, bool(is_closed), upto)
