"""The history of one attempt: what is stored of it, and its newest rows in memory, as one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

import numpy as np

from gradwatch_server.core.arrays import IndexArray
from gradwatch_server.series.buckets import COUNTS, STATS, Buckets
from gradwatch_server.series.columns import RUN_COLUMNS
from gradwatch_server.series.items import GAIN_TABLES
from gradwatch_server.series.layers import KnownLayers
from gradwatch_server.series.rows import Rows
from gradwatch_server.series.tail import TailView

MAX_EPOCHS: Final = 64
"""Epochs of an attempt that can be asked for, the newest."""


@dataclass(frozen=True, slots=True)
class Span:
    """The steps of one epoch of which something is there.

    Args:
        epoch: The epoch.
        first: The first step.
        last: The last step.
    """

    epoch: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Request for a part of a curve.

    Args:
        epoch: The epoch.
        table: `columns.RUN_TABLE`, one of `items.ITEM_TABLES`, or a column of the layers.
        items: Which items of it.
        first: The first step.
        last: The last step.
    """

    epoch: int
    table: str
    items: IndexArray
    first: int
    last: int


class StoredSeries(Protocol):
    """Stored part of one attempt, up to a chunk that is in memory."""

    def layers(self) -> KnownLayers:
        """Return the layers, none if nothing is stored."""

    def spans(self) -> Sequence[Span]:
        """Return the newest epochs, `MAX_EPOCHS` at most, oldest first."""

    def finest(self, epoch: int, first: int, last: int) -> int:
        """Return the smallest width in which all of these steps are there that were kept."""

    def pieces(self, wanted: Wanted, width: int) -> Iterator[Buckets]:
        """Yield buckets of at most a width, oldest first."""

    def newest(self, epoch: int, num_rows: int) -> int | None:
        """Return the first step of the newest rows, so many or all there are; None without any."""

    def row(self, wanted: Wanted) -> Rows | None:
        """Return the row of the first wanted step as it was, None if it is not kept."""

    def rows(self, wanted: Wanted) -> Iterator[Rows]:
        """Yield the rows of the wanted steps as they were, as far as they are kept, oldest first.

        Each is read when it is asked for.
        """

    def offset(self, epoch: int, step: int) -> int | None:
        """Return the place in the log at which a step closed, None if it is not known."""


class History:
    """Reads one track of an attempt.

    Args:
        tail: Its newest rows, None if there are none in memory.
        stored: What comes before, None if nothing does.
        layers: What it has curves of, None if that is to be read.
        gains: That of its gains, None of these themselves.
    """

    def __init__(
        self,
        tail: TailView | None,
        stored: StoredSeries | None = None,
        layers: KnownLayers | None = None,
        gains: History | None = None,
    ) -> None:
        self._tail = () if tail is None else tail.chunks
        self._stored = stored
        self._layers = layers
        self._gains = gains

    def of_table(self, table: str) -> History:
        """Return that of the track which has a table."""
        return self._gains if self._gains is not None and table in GAIN_TABLES else self

    @cached_property
    def layers(self) -> KnownLayers:
        """The layers of the attempt, none before its first frame."""
        if self._layers is not None and (len(self._layers) or self._layers.items):
            return self._layers
        return KnownLayers() if self._stored is None else self._stored.layers()

    def spans(self) -> list[Span]:
        """Return the epochs, oldest first."""
        found = {} if self._stored is None else {own.epoch: own for own in self._stored.spans()}
        for chunk, count in self._tail:
            if count:
                first, last = int(chunk.steps[0]), int(chunk.steps[count - 1])
                before = found.get(chunk.epoch)
                first = first if before is None else min(first, before.first)
                found[chunk.epoch] = Span(chunk.epoch, first, last)
        return sorted(found.values(), key=lambda own: own.epoch)

    def newest(self, epoch: int, num_rows: int) -> int | None:
        """Return the first step of the newest *num_rows* rows, None without any."""
        steps = [own.steps[:count] for own, count in self._tail if own.epoch == epoch]
        in_memory = np.concatenate(steps) if steps else np.zeros(0, dtype=np.int64)
        missing = num_rows - len(in_memory)
        before = None
        if missing > 0 and self._stored is not None:
            before = self._stored.newest(epoch, missing)
        if before is not None:
            return before
        return int(in_memory[-num_rows:][0]) if len(in_memory) else None

    def finest(self, epoch: int, first: int, last: int) -> int:
        """Return the smallest width in which the steps of `[first, last]` are kept."""
        return 1 if self._stored is None else self._stored.finest(epoch, first, last)

    def buckets(self, wanted: Wanted, width: int) -> Buckets:
        """Return the buckets of a width that hold the wanted steps; those without any are left out.

        The first and the last one are whole, also where only some of their steps are wanted.
        """
        own = Wanted(
            wanted.epoch,
            wanted.table,
            wanted.items,
            wanted.first // width * width,
            (wanted.last // width + 1) * width - 1,
        )
        pieces = [] if self._stored is None else list(self._stored.pieces(own, width))
        pieces += [Buckets.of(rows, width) for rows in self._in_memory(own)]
        return Buckets.joined(pieces, width) if pieces else empty(width, len(wanted.items))

    def row(self, wanted: Wanted) -> Rows | None:
        """Return the row of the first wanted step as it was, None if it is not kept."""
        found = list(self._in_memory(wanted))
        if found:
            return found[0]
        return None if self._stored is None else self._stored.row(wanted)

    def rows(self, wanted: Wanted) -> Iterator[Rows]:
        """Yield the rows of the wanted steps as they were, as far as they are kept, oldest first.

        Each is read when it is asked for.
        """
        if self._stored is not None:
            yield from self._stored.rows(wanted)
        yield from self._in_memory(wanted)

    def offset(self, epoch: int, step: int) -> int | None:
        """Return the place in the log at which a step closed, None if it is not known."""
        for chunk, count in self._tail:
            places = np.flatnonzero(chunk.steps[:count] == step)
            if chunk.epoch == epoch and len(places):
                return int(chunk.offsets[places[0]])
        return None if self._stored is None else self._stored.offset(epoch, step)

    def _in_memory(self, wanted: Wanted) -> Iterator[Rows]:
        for chunk, count in self._tail:
            if chunk.epoch != wanted.epoch or not count:
                continue
            if chunk.steps[0] > wanted.last or chunk.steps[count - 1] < wanted.first:
                continue
            rows = chunk.rows(wanted.table, wanted.items, count)
            found = rows.within(wanted.first, wanted.last)
            if len(found.steps):
                yield found


def empty(width: int, num_items: int) -> Buckets:
    """Return no buckets."""
    none = np.zeros(0, dtype=np.int64)
    stats = np.zeros((len(STATS), 0, num_items))
    return Buckets(width, none, none, stats, np.zeros((len(COUNTS), 0, num_items), dtype=np.int64))


def all_run_columns() -> IndexArray:
    """Return the items of all `RUN_COLUMNS`."""
    return np.arange(len(RUN_COLUMNS), dtype=np.int64)
