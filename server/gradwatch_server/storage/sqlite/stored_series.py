"""Stored curves of an attempt, put together of their chunks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import numpy as np

from gradwatch_server.series import encoding
from gradwatch_server.series.buckets import Buckets
from gradwatch_server.series.encoding import DamagedChunkError
from gradwatch_server.series.history import MAX_EPOCHS, Span, Wanted
from gradwatch_server.series.layers import KnownLayers
from gradwatch_server.series.rows import Rows
from gradwatch_server.storage.series_store import Track, width_of
from gradwatch_server.storage.sqlite.stored_chunks import FoundChunk, SQLiteChunks

logger = logging.getLogger(__name__)

T = TypeVar("T")

NO_END: Final = 1 << 62
"""A number that no chunk has."""


class StoredChunks:
    """Stored part of one track of an attempt, as it stood when it was opened.

    Args:
        source: The chunks of the attempt.
        before: The chunk of rows from which on it is read from memory; None for all from here.
        track: The track.
    """

    def __init__(self, source: SQLiteChunks, before: int | None, track: Track) -> None:
        self._source = source
        self._before = NO_END if before is None else before
        self._track = track
        self._told = False
        self._known_ends: dict[tuple[int, int], tuple[int, int] | None] = {}

    def layers(self) -> KnownLayers:
        """Return the layers, none if nothing is stored."""
        encoded = self._source.layers()
        if not encoded:
            return KnownLayers()
        try:
            return encoding.decode_layers(encoded)
        except DamagedChunkError as error:
            self._tell(error)
            return KnownLayers()

    def spans(self) -> list[Span]:
        """Return the newest epochs, oldest first."""
        spans: dict[int, Span] = {}
        for level in self._track.levels:
            for epoch in self._source.epochs(level, MAX_EPOCHS):
                ends = self._ends(level, epoch)
                if ends is None:
                    continue
                first, last = ends
                known = spans.get(epoch, Span(epoch, first, last))
                spans[epoch] = Span(epoch, min(first, known.first), max(last, known.last))
        return [spans[epoch] for epoch in sorted(spans)]

    def _ends(self, level: int, epoch: int) -> tuple[int, int] | None:
        """Return the first and the last step of the chunks of a level, None without any."""
        key = level, epoch
        if key not in self._known_ends:
            self._known_ends[key] = self._source.ends(level, epoch)
        return self._known_ends[key]

    def finest(self, epoch: int, first: int, _last: int) -> int:
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

    def newest(self, epoch: int, num_rows: int) -> int | None:
        """Return the first step of the newest rows, so many or all there are; None without any."""
        left, found = num_rows, None
        for entries, head in self._source.newest_heads(self._track, epoch, self._before):
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

    def rows(self, wanted: Wanted) -> Iterator[Rows]:
        """Yield the rows of the wanted steps as they were, as far as they are kept."""
        yield from self._read_rows(wanted, -1, self._before - 1)

    def offset(self, epoch: int, step: int) -> int | None:
        """Return the place in the log at which a step closed, None if it is not known."""
        wanted = Wanted(epoch, "", np.zeros(0, dtype=np.int64), step, step)
        for chunk in self._chunks(wanted, self._track, -1, self._before - 1):
            head = self._arrays(chunk)
            if head is not None and step in head[0]:
                return int(head[3][np.flatnonzero(head[0] == step)[0]])
        return None

    def pieces(self, wanted: Wanted, width: int) -> Iterator[Buckets]:
        """Yield buckets of at most a width, oldest first."""
        level = max(own for own in self._track.levels if width_of(own) <= width)
        yield from self._pieces(wanted, level, -1, NO_END, width)

    def _pieces(
        self, wanted: Wanted, level: int, after: int, upto: int, width: int
    ) -> Iterator[Buckets]:
        """Yield those of the chunks of a level with numbers in (after, upto], and of what follows.

        Where a chunk only says that those below are to be read, they are; so are those that none
        stands for yet.
        """
        if level == self._track:
            rows = list(self._read_rows(wanted, after, min(upto, self._before - 1)))
            if rows:
                yield Buckets.of(Rows.joined(rows), width)
            return
        for chunk in self._chunks(wanted, level, after, upto):
            facts = chunk.facts
            if facts.entries:
                buckets = self._read_buckets(chunk, wanted)
                if buckets is not None:
                    own = buckets.width
                    yield buckets.within(wanted.first // own, wanted.last // own)
            else:
                begin, _ = self._source.stood_for(level, wanted.epoch, facts.number)
                below = _within(wanted, facts.first_step, facts.last_step)
                yield from self._pieces(below, level - 1, begin, facts.upto, width)
        if upto == NO_END:
            begin, last_step = self._source.stood_for(level, wanted.epoch, NO_END)
            below = _within(wanted, last_step + 1, wanted.last)
            yield from self._pieces(below, level - 1, begin, upto, width)

    def _chunks(self, wanted: Wanted, level: int, after: int, upto: int) -> Iterator[FoundChunk]:
        """Yield the chunks of a level that have some of the wanted steps, oldest first."""
        for chunk in self._source.chunks(wanted, level, after, upto):
            if chunk.facts.first_step > wanted.last:
                return
            yield chunk

    def _read_rows(self, wanted: Wanted, after: int, upto: int) -> Iterator[Rows]:
        """Yield the wanted rows of the chunks with numbers in (after, upto], oldest first."""
        for chunk in self._chunks(wanted, self._track, after, upto):
            rows = self._decode_rows(chunk, wanted)
            found = None if rows is None else rows.within(wanted.first, wanted.last)
            if found is not None and len(found.steps):
                yield found

    def _decode_rows(self, chunk: FoundChunk, wanted: Wanted) -> Rows | None:
        head = self._arrays(chunk)
        if head is None:
            return None
        with chunk.body() as read:
            if read is None:
                shape = (chunk.facts.entries, len(wanted.items))
                values, known = np.full(shape, np.nan), np.zeros(shape, dtype=np.bool_)
                return Rows(head[0], head[1], head[2], values, known)
            return self._try(lambda: encoding.decode_rows(head, read, wanted.items))

    def _read_buckets(self, chunk: FoundChunk, wanted: Wanted) -> Buckets | None:
        head = self._arrays(chunk)
        with chunk.body() as read:
            if read is None or head is None:
                return None
            width = width_of(chunk.facts.level)
            return self._try(lambda: encoding.decode_buckets(head, width, read, wanted.items))

    def _arrays(self, chunk: FoundChunk) -> encoding.Arrays | None:
        """Return what the tables of a chunk have in common, None if that is damaged."""
        return self._try(partial(encoding.decode_arrays, chunk.head))

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


def _within(wanted: Wanted, first: int, last: int) -> Wanted:
    """Return what is wanted of some steps: the index knows steps, not the numbers of chunks."""
    return replace(wanted, first=max(wanted.first, first), last=min(wanted.last, last))
