"""Levels of a curve: rows of an open block, and closed blocks on their way into the store.

A block that is full is encoded at once. Its rows become buckets of the next level, and `FAN` blocks
of a level one block of the next, so that all follows from the rows: a replay writes the same blocks
under the same numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self, cast

import numpy as np

from gradwatch_server.core.arrays import FloatArray, IndexArray
from gradwatch_server.curves.block import FIRST_ROWS, MAX_ROWS, Block
from gradwatch_server.curves.buckets import COUNTS, STATS, Buckets
from gradwatch_server.curves.columns import RUN_TABLE
from gradwatch_server.curves.encoding import (
    BlockHead,
    DamagedBlockError,
    decode_buckets,
    decode_head,
    decode_rows,
    encode_block,
    narrowed,
)
from gradwatch_server.curves.facts import (
    FAN,
    MAX_LEVEL,
    BlockFacts,
    Read,
    SavedBlock,
    StoredCurves,
    Track,
    height,
    width_of,
)
from gradwatch_server.curves.items import ITEM_TABLES
from gradwatch_server.curves.new_row import NewRow
from gradwatch_server.curves.rows import Rows
from gradwatch_wire.columns import L2
from gradwatch_wire.limits import MAX_STEP

logger = logging.getLogger(__name__)

LEAST_GAIN: Final = 2
"""Buckets are written where they are so many times fewer than what they are made of."""

Piece = Mapping[str, Buckets]
"""Table to buckets of the next level."""


@dataclass(slots=True)
class _Source:
    """A block that one of the next level will be made of; without a piece it is read again."""

    facts: BlockFacts
    piece: Piece | None = None


@dataclass(frozen=True, slots=True)
class TailView:
    """Rows in memory as a reader sees them: blocks, each with the rows that it had."""

    blocks: tuple[tuple[Block, int], ...] = ()


class Levels:
    """One track of an attempt.

    Args:
        last: Epoch and step of the newest row before it.
    """

    def __init__(self, track: Track, first: int = 0, last: tuple[int, int] = (-1, -1)) -> None:
        self.last = last
        self.num_added = 0
        self.unsaved: list[SavedBlock] = []
        """Blocks that the store does not have, oldest first."""
        self._track = track
        self._numbers = [first, *[0] * MAX_LEVEL]  # level -> the number of its next block
        self._sources: list[list[_Source]] = [[] for _ in range(MAX_LEVEL)]
        self._closed: list[Block] = []  # those of `unsaved` that have rows
        self._open: Block | None = None
        self._num_saved = 0  # rows of the open block that the store has
        self._capacity = FIRST_ROWS  # rows that the next block has room for at first

    @classmethod
    def resume(cls, track: Track, stored: StoredCurves) -> Self:
        """Return a track that goes on after its stored blocks."""
        newest = stored.newest(track)
        if newest is None:
            return cls(track)
        made = cls(track, newest.number + 1, (newest.epoch, newest.last_step))
        if not newest.is_closed:
            made._open = _read_open(stored, newest)
            made._num_saved = newest.entries
        for above, level in enumerate(track.levels[1:], 1):
            newest_above = stored.newest(level)
            after = -1
            if newest_above is not None:
                made._numbers[above], after = newest_above.number + 1, newest_above.upto
            sources = stored.after(level - 1, newest.epoch, after, FAN)
            made._sources[above - 1] = [_Source(source) for source in sources if source.is_closed]
        return made

    @property
    def is_saved(self) -> bool:
        """Durability: true if the store has all rows."""
        return not self.unsaved and (self._open is None or self._open.count == self._num_saved)

    @property
    def num_bytes(self) -> int:
        pieces = sum(
            table.stats.nbytes + table.counts.nbytes
            for sources in self._sources
            for source in sources
            for table in (source.piece or {}).values()
        )
        return pieces + (0 if self._open is None else self._open.num_bytes)

    def view(self) -> TailView:
        closed = tuple([(block, block.count) for block in self._closed]) if self._closed else ()
        block = self._open
        return TailView(closed if block is None else (*closed, (block, block.count)))

    def add(self, row: NewRow, number: int, stored: StoredCurves) -> None:
        """Add a row, unless it is there already: after a restart it may come again."""
        place = row.epoch, row.step
        if place <= self.last:
            return
        if self._open is not None and self._open.epoch != row.epoch:
            self._close(self._open, stored)
        if self._open is None:
            self._open = Block.begun(self._numbers[0], row, self._capacity)
        elif not self._open.fits(row):
            self._open = self._open.grown(row)
        self._open.add(row, number)
        self.last = place
        self.num_added += 1
        if self._open.is_full:
            self._close(self._open, stored)

    def extend(self, epoch: int, rows: Rows, number: int, stored: StoredCurves) -> None:
        """Add rows of numbers of the run; see `add`."""
        last_epoch, last_step = self.last
        if epoch < last_epoch:
            return
        left = rows.within(last_step + 1 if epoch == last_epoch else 0, MAX_STEP)
        while len(left.steps):
            if self._open is not None and self._open.epoch != epoch:
                self._close(self._open, stored)
            block = self._open or Block(self._numbers[0], epoch, MAX_ROWS, (), 0)
            if block.count == block.capacity:
                block = block.grown(NewRow(epoch, int(left.steps[0]), 0))
            self._open = block
            count = min(block.capacity - block.count, len(left.steps))
            newest = int(left.steps[count - 1])
            block.extend(left.within(0, newest), number)
            left = left.within(newest + 1, MAX_STEP)
            self.last = epoch, newest
            self.num_added += count
            if block.is_full:
                self._close(block, stored)

    def save_open(self) -> None:
        """Add the open block to `unsaved`, unless the store has all of its rows."""
        if self._open is not None and self._open.count > self._num_saved:
            rows = self._open.tables()
            self.unsaved.append(_encoded_rows(self._open, rows, self._track, is_closed=False))
            self._num_saved = self._open.count

    def mark_saved(self) -> None:
        self.unsaved.clear()
        self._closed.clear()

    def forget_pieces(self) -> None:
        """Let go of what can be read again."""
        for sources in self._sources:
            for source in sources:
                source.piece = None

    def _close(self, block: Block, stored: StoredCurves) -> None:
        # First, so that a fault below costs this block and not the next ones.
        self._open, self._num_saved, self._numbers[0] = None, 0, block.number + 1
        self._capacity = block.capacity
        piece: dict[str, Buckets] = {}

        def tables() -> Iterator[tuple[str, Rows]]:
            # One after the other: large memory that is new costs more than the work on it.
            for name, rows in block.tables():
                piece[name] = _kept(Buckets.of(rows, FAN))
                yield name, rows

        saved = _encoded_rows(block, tables(), self._track, is_closed=True)
        self.unsaved.append(saved)
        self._closed.append(block)
        self._feed(_Source(saved.facts, piece), 1, stored)

    def _feed(self, source: _Source, above: int, stored: StoredCurves) -> None:
        """Take in a closed block of the level below *above*."""
        sources = self._sources[above - 1]
        if sources and sources[0].facts.epoch != source.facts.epoch:
            sources.clear()  # the rest of an epoch that is over stays as it is
        sources.append(source)
        if len(sources) < FAN:
            return
        level = self._track + above
        wide: dict[str, Buckets] = {}
        if all(source.facts.entries for source in sources):
            pieces = [source.piece or _read_piece(source.facts, stored) for source in sources]
            wide = _joined([piece for piece in pieces if piece], width_of(level))
        entries = len(wide[RUN_TABLE].numbers) if wide else 0
        if LEAST_GAIN * entries > sum(source.facts.entries for source in sources):
            wide, entries = {}, 0
        first, last = sources[0].facts, sources[-1].facts
        steps = first.first_step, last.last_step
        number = self._numbers[above]
        facts = BlockFacts(level, number, first.epoch, *steps, entries, upto=last.number)
        self.unsaved.append(_encoded_buckets(facts, wide))
        self._numbers[above] += 1
        sources.clear()
        if above < MAX_LEVEL:
            width = width_of(level + 1)
            piece = {name: _kept(Buckets.joined([table], width)) for name, table in wide.items()}
            self._feed(_Source(facts, piece), above + 1, stored)


def _encoded_rows(
    block: Block, tables: Iterable[tuple[str, Rows]], track: Track, *, is_closed: bool
) -> SavedBlock:
    rows = slice(block.count)
    steps = block.steps[rows]
    ends = int(steps[0]), int(steps[-1])
    facts = BlockFacts(track, block.number, block.epoch, *ends, block.count, is_closed=is_closed)
    head = [steps, block.times_ns[rows], block.skipped[rows], block.offsets[rows]]
    arrays = ((name, [table.values, table.known]) for name, table in tables)
    return SavedBlock(facts, *encode_block(head, arrays))


def _encoded_buckets(facts: BlockFacts, tables: Mapping[str, Buckets]) -> SavedBlock:
    if not tables:
        return SavedBlock(facts, *encode_block([], ()))
    run = tables[RUN_TABLE]
    arrays = (
        (name, [*narrowed(table.stats), *table.counts.astype(np.float64)])
        for name, table in tables.items()
    )
    return SavedBlock(facts, *encode_block([run.numbers, run.times_ns], arrays))


def _kept(buckets: Buckets) -> Buckets:
    """Return buckets as they stay in memory, as a block would hold them."""
    stats, counts = narrowed(buckets.stats), buckets.counts.astype(np.int32)
    return replace(buckets, stats=cast(FloatArray, stats), counts=cast(IndexArray, counts))


def _joined(pieces: Sequence[Piece], width: int) -> dict[str, Buckets]:
    """Put pieces together that follow one another; none has what none knows."""
    names = dict.fromkeys(name for piece in pieces for name in piece)
    return {name: _joined_table(name, pieces, width) for name in names}


def _joined_table(name: str, pieces: Sequence[Piece], width: int) -> Buckets:
    num_items = [piece[name].stats.shape[2] if name in piece else -1 for piece in pieces]
    if min(num_items) == max(num_items):
        return Buckets.joined([piece[name] for piece in pieces], width)
    return Buckets.joined([_filled(piece, name, max(num_items)) for piece in pieces], width)


def _filled(piece: Piece, name: str, num_items: int) -> Buckets:
    """Return a table of a piece with so many items; of those that it lacks nothing is known."""
    run, table = piece[RUN_TABLE], piece.get(name)
    shape = len(run.numbers), num_items
    stats = np.full((len(STATS), *shape), np.nan)
    counts = np.zeros((len(COUNTS), *shape), dtype=np.int64)
    if table is not None:
        stats[:, :, : table.stats.shape[2]] = table.stats
        counts[:, :, : table.counts.shape[2]] = table.counts
    return replace(run, stats=stats, counts=counts)


def _read_piece(facts: BlockFacts, stored: StoredCurves) -> Piece:
    """Return the buckets of the next level of a block in the store, none if it cannot be read."""
    block = stored.block(facts.level, facts.number)
    if block is None:
        return {}
    width = width_of(facts.level + 1)
    try:
        head = decode_head(block.head)
        if height(facts.level):
            below = width_of(facts.level)
            return {
                name: Buckets.joined([decode_buckets(head, below, name, block.read)], width)
                for name in head.tables
            }
        return {
            name: Buckets.of(decode_rows(head, name, block.read), width) for name in head.tables
        }
    except DamagedBlockError as error:
        logger.warning("a block of curves is left out of wider ones: %s", error)
        return {}


def _read_open(stored: StoredCurves, facts: BlockFacts) -> Block | None:
    """Return a stored block that rows may be added to, None if it cannot be read."""
    block = stored.block(facts.level, facts.number)
    try:
        return None if block is None else _decode_open(facts, decode_head(block.head), block.read)
    except (DamagedBlockError, ValueError, TypeError) as error:
        logger.warning("a curve goes on in a block of its own: %s", error)
        return None


def _decode_open(facts: BlockFacts, head: BlockHead, read: Read) -> Block:
    tables = {name: decode_rows(head, name, read) for name in head.tables}
    run = tables.pop(RUN_TABLE)
    items = {name: tables.pop(name) for name in ITEM_TABLES & tables.keys()}
    num_layers = tables[L2].values.shape[1] if L2 in tables else 0
    made = Block(facts.number, facts.epoch, max(facts.entries, 1), tuple(tables), num_layers)
    made.steps[:], made.times_ns[:], made.skipped[:], made.offsets[:] = head.arrays
    made.run[:], made.run_known[:] = run.values, run.known
    for place, table in enumerate(tables.values()):
        made.values[:, place] = table.values
    if L2 in tables:
        made.present[:] = tables[L2].known
    for name, table in items.items():
        made.add_table(name, table.values.shape[1])
        made.items[name][0][:], made.items[name][1][:] = table.values, table.known
    made.count = facts.entries
    return made
