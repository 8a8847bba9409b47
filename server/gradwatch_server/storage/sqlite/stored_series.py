"""What is stored of the curves of an attempt, for one who reads: a connection of its own."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from gradwatch_server.series import encoding
from gradwatch_server.series.buckets import Buckets
from gradwatch_server.series.encoding import DamagedChunkError
from gradwatch_server.series.history import MAX_EPOCHS, Span, Wanted
from gradwatch_server.series.layers import KnownLayers
from gradwatch_server.series.rows import Rows
from gradwatch_server.storage.series_store import ChunkFacts, Track, width_of
from gradwatch_server.storage.sqlite.faults import storage_errors
from gradwatch_server.storage.sqlite.series_rows import FACTS, NO_END, facts_of, open_body

logger = logging.getLogger(__name__)

T = TypeVar("T")

_EPOCHS: Final = (
    "WITH RECURSIVE epochs (epoch) AS ("
    " SELECT max(epoch) FROM series_chunks WHERE series = ? AND level = ? UNION ALL"
    " SELECT (SELECT max(epoch) FROM series_chunks WHERE series = ? AND level = ?"
    " AND epoch < epochs.epoch) FROM epochs WHERE epoch IS NOT NULL"
    ") SELECT epoch FROM epochs WHERE epoch IS NOT NULL LIMIT ?"
)
"""From the newest on: each is one look into the index, however many chunks it has."""

_END: Final = (
    "(SELECT {} FROM series_chunks WHERE series = ? AND level = ? AND epoch = ? AND entries > 0"
    " ORDER BY last_step {} LIMIT 1)"
)
_ENDS: Final = f"SELECT {_END.format('first_step', 'ASC')}, {_END.format('last_step', 'DESC')}"


class StoredSQLiteSeries:
    """What is stored of one track of an attempt, as it stood when it was opened.

    Args:
        connection: One that is in a transaction.
        run: Name of the run.
        attempt: Number of the attempt.
        before: The chunk of rows from which on it is read from memory; None for all from here.
        track: The track.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        run: str,
        attempt: int,
        before: int | None,
        track: Track,
    ) -> None:
        self._connection = connection
        self._before = NO_END if before is None else before
        self._track = track
        self._told = False
        self._known_ends: dict[tuple[int, int], tuple[int, int] | None] = {}
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
        for level in self._track.levels:
            own = self._series, level
            for (epoch,) in self._rows(_EPOCHS, *own, *own, MAX_EPOCHS):
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
            own = self._series, level, epoch
            oldest, newest = self._row(_ENDS, *own, *own)
            self._known_ends[key] = None if oldest is None else (int(oldest), int(newest))
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
        rows = self._rows(
            "SELECT entries, head FROM series_chunks WHERE series = ? AND level = ? AND epoch = ?"
            " AND number < ? ORDER BY last_step DESC",
            self._series,
            int(self._track),
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

    def rows(self, wanted: Wanted) -> Iterator[Rows]:
        """Yield the rows of the wanted steps as they were, as far as they are kept."""
        yield from self._read_rows(wanted, -1, self._before - 1)

    def offset(self, epoch: int, step: int) -> int | None:
        """Return the place in the log at which a step closed, None if it is not known."""
        wanted = Wanted(epoch, "", np.zeros(0, dtype=np.int64), step, step)
        for _, head, _ in self._chunks(wanted, self._track, -1, self._before - 1):
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
        for facts, head, place in self._chunks(wanted, level, after, upto):
            if facts.entries:
                buckets = self._read_buckets(facts, head, place, wanted)
                if buckets is not None:
                    own = buckets.width
                    yield buckets.within(wanted.first // own, wanted.last // own)
            else:
                begin, _ = self._upto(wanted.epoch, level, facts.number)
                below = _within(wanted, facts.first_step, facts.last_step)
                yield from self._pieces(below, level - 1, begin, facts.upto, width)
        if upto == NO_END:
            begin, last_step = self._upto(wanted.epoch, level, None)
            below = _within(wanted, last_step + 1, wanted.last)
            yield from self._pieces(below, level - 1, begin, upto, width)

    def _upto(self, epoch: int, level: int, before: int | None) -> tuple[int, int]:
        """Return up to which chunk below those of a level stand for, before a number or all.

        And up to which step; -1 for none.
        """
        row = self._row(
            "SELECT upto, last_step FROM series_chunks WHERE series = ? AND level = ? AND epoch = ?"
            " AND number < ? ORDER BY last_step DESC LIMIT 1",
            self._series,
            level,
            epoch,
            NO_END if before is None else before,
        )
        return (-1, -1) if row is None else (int(row[0]), int(row[1]))

    def _chunks(
        self, wanted: Wanted, level: int, after: int, upto: int
    ) -> Iterator[tuple[ChunkFacts, encoding.Arrays | None, int | None]]:
        """Yield the chunks of a level that have some of the wanted steps, oldest first.

        Each with its head, None if that is damaged, and the place of the wanted table, None if it
        has none.
        """
        rows = self._rows(
            f"SELECT head, t.id, {FACTS} FROM series_chunks AS c"  # noqa: S608 - a literal
            " LEFT JOIN series_tables AS t ON t.chunk = c.id AND t.name = ?"
            " WHERE series = ? AND level = ? AND epoch = ? AND last_step >= ? AND number > ?"
            " AND number <= ? ORDER BY last_step",
            *(wanted.table, self._series, level, wanted.epoch, wanted.first, after, upto),
        )
        for head, place, *own in rows:
            facts = facts_of(own)
            if facts.first_step > wanted.last:
                return
            yield facts, self._try(partial(encoding.decode_arrays, head)), place

    def _read_rows(self, wanted: Wanted, after: int, upto: int) -> Iterator[Rows]:
        """Yield the wanted rows of the chunks with numbers in (after, upto], oldest first."""
        for facts, head, place in self._chunks(wanted, self._track, after, upto):
            rows = None if head is None else self._decode_rows(facts, head, place, wanted)
            found = None if rows is None else rows.within(wanted.first, wanted.last)
            if found is not None and len(found.steps):
                yield found

    def _decode_rows(
        self, facts: ChunkFacts, head: encoding.Arrays, place: int | None, wanted: Wanted
    ) -> Rows | None:
        with open_body(self._connection, place) as read:
            if read is None:
                shape = (facts.entries, len(wanted.items))
                values, known = np.full(shape, np.nan), np.zeros(shape, dtype=np.bool_)
                return Rows(head[0], head[1], head[2], values, known)
            return self._try(lambda: encoding.decode_rows(head, read, wanted.items))

    def _read_buckets(
        self, facts: ChunkFacts, head: encoding.Arrays | None, place: int | None, wanted: Wanted
    ) -> Buckets | None:
        with open_body(self._connection, place) as read:
            if read is None or head is None:
                return None
            width = width_of(facts.level)
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


def _within(wanted: Wanted, first: int, last: int) -> Wanted:
    """Return what is wanted of some steps: the index knows steps, not the numbers of chunks."""
    return replace(wanted, first=max(wanted.first, first), last=min(wanted.last, last))
