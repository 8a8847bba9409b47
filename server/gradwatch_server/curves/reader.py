"""The curves of one attempt: what is stored of it, and its newest rows in memory, as one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from typing import Final, TypeVar

import numpy as np

from gradwatch_server.core.arrays import IndexArray
from gradwatch_server.core.state_codec import decode
from gradwatch_server.curves.block import Block
from gradwatch_server.curves.buckets import COUNTS, STATS, Buckets
from gradwatch_server.curves.columns import RUN_COLUMNS, RUN_TABLE
from gradwatch_server.curves.encoding import (
    BlockHead,
    DamagedBlockError,
    decode_buckets,
    decode_head,
    decode_rows,
    narrowed,
)
from gradwatch_server.curves.facts import (
    SeriesQuery,
    Span,
    StoredBlock,
    StoredCurves,
    Track,
    width_of,
)
from gradwatch_server.curves.items import GAIN_TABLES
from gradwatch_server.curves.layers import KnownLayers
from gradwatch_server.curves.levels import TailView
from gradwatch_server.curves.rows import Rows

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_EPOCHS: Final = 64
"""Epochs of an attempt that can be asked for, the newest."""

NO_END: Final = 1 << 62
"""A number that no block has."""


class History:
    """Reads one track of an attempt.

    Args:
        tail: Its rows in memory; those that are stored as well are read from the store.
        layers: The layers in memory, None if they are to be read.
        gains: History of the gains, None of these themselves.
        steps: History of the steps without a frame, None of these themselves.
    """

    def __init__(
        self,
        stored: StoredCurves,
        track: Track,
        tail: TailView,
        layers: KnownLayers | None = None,
        gains: History | None = None,
        steps: History | None = None,
    ) -> None:
        self._stored, self._track, self._layers, self._gains = stored, track, layers, gains
        self.steps = steps
        # The store is looked at after the memory: a block may have been committed in between.
        newest = stored.newest(track, is_closed=True)
        self._tail = [
            block for block in tail.blocks if newest is None or block[0].number > newest.number
        ]
        self._before = self._tail[0][0].number if self._tail else NO_END
        self._told = False
        self._known_ends: dict[tuple[int, int], tuple[int, int] | None] = {}

    def of_table(self, table: str) -> History:
        return self._gains if self._gains is not None and table in GAIN_TABLES else self

    @cached_property
    def layers(self) -> KnownLayers:
        """The layers of the attempt, none before its first frame."""
        if self._layers is not None and (len(self._layers) or self._layers.items):
            return self._layers
        encoded = self._stored.layers()
        layers = self._try(partial(decode, encoded, KnownLayers)) if encoded else None
        return layers or KnownLayers()

    def spans(self) -> list[Span]:
        """Return the newest epochs, oldest first."""
        spans: dict[int, Span] = {}

        def add(epoch: int, first: int, last: int) -> None:
            known = spans.get(epoch, Span(epoch, first, last))
            spans[epoch] = Span(epoch, min(first, known.first), max(last, known.last))

        for level in self._track.levels:
            for epoch in self._stored.epochs(level, MAX_EPOCHS):
                ends = self._ends(level, epoch)
                if ends is not None:
                    add(epoch, *ends)
        for block, count in self._tail:
            if count:
                add(block.epoch, int(block.steps[0]), int(block.steps[count - 1]))
        return sorted(spans.values())

    def _ends(self, level: int, epoch: int) -> tuple[int, int] | None:
        """Return the first and the last step of the blocks of a level, None without any."""
        key = level, epoch
        if key not in self._known_ends:
            self._known_ends[key] = self._stored.ends(level, epoch)
        return self._known_ends[key]

    def newest(self, epoch: int, num_rows: int) -> int | None:
        """Return the first step of the newest *num_rows* rows, None without any."""
        left, first = num_rows, None
        for block, count in reversed(self._tail):
            if block.epoch == epoch and count and left > 0:
                first = int(block.steps[max(count - left, 0)])
                left -= count
        if left <= 0:
            return first
        for entries, encoded in self._stored.heads(self._track, epoch, self._before):
            head = self._try(partial(decode_head, encoded))
            if head is not None and len(head.arrays[0]):
                first = int(head.arrays[0][-min(left, len(head.arrays[0]))])
            left -= entries
            if left <= 0:
                break
        return first

    def finest(self, epoch: int, first: int) -> int:
        """Return the smallest width in which steps from *first* on are there that were kept."""
        begins: list[tuple[int, int]] = []
        for level in self._track.levels:
            ends = self._ends(level, epoch)
            if ends is not None:
                begins.append((ends[0], width_of(level)))
        if not begins:
            return 1
        oldest = min(begins)[0]
        return min(width for begin, width in begins if begin <= max(first, oldest))

    def buckets(self, wanted: SeriesQuery, width: int) -> Buckets:
        """Return the buckets of a width that hold the wanted steps; those without any are left out.

        The first and the last one are whole, also where only some of their steps are wanted.
        """
        first, last = wanted.first // width * width, (wanted.last // width + 1) * width - 1
        query = wanted._replace(first=first, last=last)
        level = max(level for level in self._track.levels if width_of(level) <= width)
        pieces = list(self._pieces(query, level, -1, NO_END, width))
        pieces += [Buckets.of(rows, width) for rows in self._in_memory(query)]
        return Buckets.joined(pieces, width) if pieces else _empty(width, len(wanted.items))

    def run_buckets(self, wanted: SeriesQuery, width: int) -> Buckets:
        """Return buckets of numbers of the run, of steps with a frame and of those without."""
        frames = self.buckets(wanted, width)
        return frames if self.steps is None else frames.merged(self.steps.buckets(wanted, width))

    def row(self, wanted: SeriesQuery) -> Rows | None:
        """Return the row of the first wanted step, None if it is not kept."""
        return next(self.rows(wanted), None)

    def rows(self, wanted: SeriesQuery) -> Iterator[Rows]:
        """Yield the rows of the wanted steps, as far as they are kept, oldest first.

        Each is read when it is asked for.
        """
        yield from self._read_rows(wanted, -1, self._before - 1)
        yield from self._in_memory(wanted)

    def offset(self, epoch: int, step: int) -> int | None:
        """Return the number of the entry by which a step closed, None if it is not known."""
        for block, count in self._tail:
            places = np.flatnonzero(block.steps[:count] == step)
            if block.epoch == epoch and len(places):
                return int(block.offsets[places[0]])
        wanted = SeriesQuery(epoch, "", np.zeros(0, dtype=np.int64), step, step)
        for stored in self._blocks(wanted, self._track, -1, self._before - 1):
            head = self._head(stored)
            if head is not None and step in head.arrays[0]:
                return int(head.arrays[3][np.flatnonzero(head.arrays[0] == step)[0]])
        return None

    def _in_memory(self, wanted: SeriesQuery) -> Iterator[Rows]:
        for block, count in self._tail:
            if _overlaps(block, count, wanted):
                rows = block.rows(wanted.table, wanted.items, count)
                selected = _as_stored(wanted.table, rows.within(wanted.first, wanted.last))
                if len(selected.steps):
                    yield selected

    def _pieces(
        self, wanted: SeriesQuery, level: int, after: int, upto: int, width: int
    ) -> Iterator[Buckets]:
        """Yield buckets of the blocks with numbers in (after, upto], and of what follows.

        Where a block only says that those below are to be read, they are; so are those that none
        stands for yet.
        """
        if level == self._track:
            rows = list(self._read_rows(wanted, after, min(upto, self._before - 1)))
            if rows:
                yield Buckets.of(Rows.joined(rows), width)
            return
        for block in self._blocks(wanted, level, after, upto):
            facts = block.facts
            if facts.entries:
                buckets = self._read_buckets(block, wanted)
                if buckets is not None:
                    finer = buckets.width
                    yield buckets.within(wanted.first // finer, wanted.last // finer)
            else:
                begin, _ = self._stored.stood_for(level, wanted.epoch, facts.number)
                below = _within(wanted, facts.first_step, facts.last_step)
                yield from self._pieces(below, level - 1, begin, facts.upto, width)
        if upto == NO_END:
            begin, last_step = self._stored.stood_for(level, wanted.epoch, NO_END)
            below = _within(wanted, last_step + 1, wanted.last)
            yield from self._pieces(below, level - 1, begin, upto, width)

    def _blocks(
        self, wanted: SeriesQuery, level: int, after: int, upto: int
    ) -> Iterator[StoredBlock]:
        """Yield the blocks of a level that have some of the wanted steps, oldest first."""
        for block in self._stored.blocks(level, wanted.epoch, wanted.first, after, upto):
            if block.facts.first_step > wanted.last:
                return
            yield block

    def _read_rows(self, wanted: SeriesQuery, after: int, upto: int) -> Iterator[Rows]:
        """Yield the wanted rows of the blocks with numbers in (after, upto], oldest first."""
        for block in self._blocks(wanted, self._track, after, upto):
            head = self._head(block)
            if head is None:
                continue
            rows = self._try(partial(decode_rows, head, wanted.table, block.read, wanted.items))
            selected = None if rows is None else rows.within(wanted.first, wanted.last)
            if selected is not None and len(selected.steps):
                yield selected

    def _read_buckets(self, block: StoredBlock, wanted: SeriesQuery) -> Buckets | None:
        head = self._head(block)
        if head is None or wanted.table not in head.tables:
            return None
        width = width_of(block.facts.level)
        return self._try(
            partial(decode_buckets, head, width, wanted.table, block.read, wanted.items)
        )

    def _head(self, block: StoredBlock) -> BlockHead | None:
        return self._try(partial(decode_head, block.head))

    def _try(self, read: Callable[[], T]) -> T | None:
        """Return what is decoded; None if it is not what was written, which is told once."""
        try:
            return read()
        except (DamagedBlockError, ValueError, TypeError) as error:
            if not self._told:
                logger.warning("a block of curves is left out (told once): %s", error)
            self._told = True
            return None


def _as_stored(table: str, rows: Rows) -> Rows:
    """Return rows as they are read once their block is stored."""
    if table == RUN_TABLE:
        return rows
    return replace(rows, values=narrowed(rows.values).astype(np.float64))


def _overlaps(block: Block, count: int, wanted: SeriesQuery) -> bool:
    if block.epoch != wanted.epoch or not count:
        return False
    return bool(block.steps[0] <= wanted.last and block.steps[count - 1] >= wanted.first)


def _within(wanted: SeriesQuery, first: int, last: int) -> SeriesQuery:
    """Return what is wanted of some steps: the index knows steps, not the numbers of blocks."""
    return wanted._replace(first=max(wanted.first, first), last=min(wanted.last, last))


def _empty(width: int, num_items: int) -> Buckets:
    none = np.zeros(0, dtype=np.int64)
    stats = np.zeros((len(STATS), 0, num_items))
    return Buckets(width, none, none, stats, np.zeros((len(COUNTS), 0, num_items), dtype=np.int64))


def all_run_columns() -> IndexArray:
    """Return the items of all `RUN_COLUMNS`."""
    return np.arange(len(RUN_COLUMNS), dtype=np.int64)
