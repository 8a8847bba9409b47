"""Makes chunks of wider buckets of those that are there, in slices.

What is made follows from what is stored alone, and is written in one piece: who is killed meanwhile
begins that piece again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import IndexArray
from gradwatch_server.series.buckets import COUNTS, STATS, Buckets
from gradwatch_server.series.columns import RUN_TABLE
from gradwatch_server.series.encoding import (
    BLOCK_ITEMS,
    Arrays,
    DamagedChunkError,
    Read,
    decode_arrays,
    decode_buckets,
    decode_plain,
    decode_rows,
    encode_arrays,
    join_blocks,
    split_buckets,
)
from gradwatch_server.series.history import empty
from gradwatch_server.series.rows import Rows
from gradwatch_server.storage.series_store import (
    FAN,
    ChunkFacts,
    SavedSeriesChunk,
    SeriesStore,
    Track,
    height,
    width_of,
)

SLICE_ITEMS: Final = 4 * BLOCK_ITEMS
"""Items that are worked on at once: some 5 ms."""

LEAST_GAIN: Final = 2
"""Buckets are written where they are so many times fewer than what they are made of."""


class Compactor:
    """Works off what may have become due.

    Args:
        store: Where it is read and written.
    """

    def __init__(self, store: SeriesStore) -> None:
        self._store = store
        self._due: dict[tuple[str, int], None] = {}
        self._work: Iterator[None] | None = None
        self._of: tuple[str, int] = ("", 0)

    def note(self, run: str, attempt: int) -> None:
        """Say that a chunk of rows was closed."""
        self._due[run, attempt] = None

    def forget(self, run: str, attempt: int) -> None:
        """Say that an attempt is removed."""
        self._due.pop((run, attempt), None)
        if self._of == (run, attempt):
            self._work = None

    def step(self) -> bool:
        """Do one slice; return whether there was any.

        Raises:
            StorageError: If the store cannot be read or written; the piece is begun again then.
        """
        if self._work is None:
            if not self._due:
                return False
            # What is noted meanwhile is looked at once more.
            self._of = next(iter(self._due))
            del self._due[self._of]
            self._work = self._compact(*self._of)
        try:
            next(self._work)
        except StopIteration:
            self._work = None
        except Exception:
            self._work, self._due[self._of] = None, None
            raise
        return True

    def _compact(self, run: str, attempt: int) -> Iterator[None]:
        """Make what is due of an attempt, the narrowest first."""
        for level in (level for track in Track for level in track.levels[1:]):
            while sources := self._sources(run, attempt, level):
                yield from _Piece(self._store, run, attempt, level, sources).make()
            yield

    def _sources(self, run: str, attempt: int, level: int) -> list[ChunkFacts]:
        """Return the chunks of the level below that make the next one, none if they are too few."""
        newest = self._store.newest(run, attempt, level)
        after = -1 if newest is None else newest.upto
        while True:
            found = self._store.after(run, attempt, level - 1, after, FAN)
            closed = list(takewhile(lambda own: own.is_closed, found))
            same = [own for own in closed if own.epoch == closed[0].epoch]
            if len(same) == FAN:
                return same
            if len(same) == len(closed):
                return []
            after = same[-1].number  # the rest of an epoch that is over stays as it is


class _Piece:
    """One chunk that is being made."""

    def __init__(
        self, store: SeriesStore, run: str, attempt: int, level: int, sources: Sequence[ChunkFacts]
    ) -> None:
        self._store, self._of, self._level, self._sources = store, (run, attempt), level, sources
        self._heads: list[Arrays | None] = []
        self._width = width_of(level)

    def make(self) -> Iterator[None]:
        """Read, reduce and write it."""
        self._heads = [self._head(own) for own in self._sources]
        frame = self._joined(RUN_TABLE, np.zeros(0, dtype=np.int64))
        entries = sum(own.entries for own in self._sources)
        tables: dict[str, bytes] = {}
        is_worth = all(own.entries for own in self._sources)
        is_worth &= 0 < LEAST_GAIN * len(frame.numbers) <= entries
        if is_worth:
            for name in self._tables():
                blocks: list[bytes] = []
                num_items = self._num_items(name)
                for first in range(0, num_items, SLICE_ITEMS):
                    last = min(first + SLICE_ITEMS, num_items)
                    blocks += split_buckets(self._joined(name, np.arange(first, last)))
                    yield
                tables[name] = join_blocks(num_items, blocks)
        self._write(frame, tables, len(frame.numbers) if is_worth else 0)
        yield

    def _write(self, frame: Buckets, tables: dict[str, bytes], entries: int) -> None:
        newest = self._store.newest(*self._of, self._level)
        first, last = self._sources[0], self._sources[-1]
        facts = ChunkFacts(
            level=self._level,
            number=0 if newest is None else newest.number + 1,
            epoch=first.epoch,
            first_step=first.first_step,
            last_step=last.last_step,
            entries=entries,
            upto=last.number,
        )
        head = encode_arrays([frame.numbers, frame.times_ns])
        self._store.save(*self._of, [SavedSeriesChunk(facts, head, tables)])

    def _head(self, own: ChunkFacts) -> Arrays | None:
        try:
            return decode_arrays(self._store.head(*self._of, own.level, own.number))
        except (DamagedChunkError, ValueError, TypeError):
            return None

    def _tables(self) -> list[str]:
        names: dict[str, None] = {}
        for own in self._sources:
            names |= dict.fromkeys(self._store.tables(*self._of, own.level, own.number))
        return list(names)

    def _num_items(self, table: str) -> int:
        return max(self._num_items_of(own, table) for own in self._sources)

    def _num_items_of(self, own: ChunkFacts, table: str) -> int:
        with self._body(own, table) as read, contextlib.suppress(DamagedChunkError, ValueError):
            if read is not None:
                length = int.from_bytes(read(0, 8), "little")
                return int(decode_plain(read(8, length))[0])
        return 0

    def _joined(self, table: str, items: IndexArray) -> Buckets:
        sources = zip(self._sources, self._heads, strict=True)
        pieces = [self._piece(own, head, table, items) for own, head in sources]
        known = [own for own in pieces if own is not None]
        return Buckets.joined(known, self._width) if known else empty(self._width, len(items))

    def _piece(
        self, own: ChunkFacts, head: Arrays | None, table: str, items: IndexArray
    ) -> Buckets | None:
        """Return what a chunk has of some items, nothing known where it lacks the table."""
        if head is None:
            return None
        with self._body(own, table) as read:
            if read is not None and len(items):
                with contextlib.suppress(DamagedChunkError, ValueError, TypeError):
                    return self._decode(own, head, read, items)
        if height(own.level):
            shape = (len(head[0]), len(items))
            stats = np.full((len(STATS), *shape), np.nan)
            counts = np.zeros((len(COUNTS), *shape), dtype=np.int64)
            return Buckets(width_of(own.level), head[0], head[1], stats, counts)
        values = np.full((len(head[0]), len(items)), np.nan)
        rows = Rows(head[0], head[1], head[2], values, np.zeros(values.shape, dtype=np.bool_))
        return Buckets.of(rows, self._width)

    def _decode(self, own: ChunkFacts, head: Arrays, read: Read, items: IndexArray) -> Buckets:
        if height(own.level):
            return decode_buckets(head, width_of(own.level), read, items)
        return Buckets.of(decode_rows(head, read, items), self._width)

    def _body(self, own: ChunkFacts, table: str) -> contextlib.AbstractContextManager[Read | None]:
        return self._store.body(*self._of, own.level, own.number, table)
