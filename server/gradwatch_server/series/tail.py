"""A tail: the newest rows of an attempt, as far as they are not all in the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradwatch_server.series.chunk import Chunk
from gradwatch_server.series.new_row import NewRow


@dataclass(frozen=True, slots=True)
class TailView:
    """Tail as a reader sees it.

    Args:
        first: Number of its first chunk: those before are in the store.
        chunks: The chunks, each with the rows that it had, oldest first.
    """

    first: int
    chunks: tuple[tuple[Chunk, int], ...]


class Tail:
    """The newest rows of a track of an attempt.

    Args:
        first: Number of the chunk that begins it.
        last: Epoch and step of the newest row before it, which stands in the store.
    """

    def __init__(self, first: int = 0, last: tuple[int, int] = (-1, -1)) -> None:
        self.last = last
        self.num_added = 0
        self._first = first
        self._chunks: tuple[Chunk, ...] = ()

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """All chunks, oldest first; the last one grows."""
        return self._chunks

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory."""
        return sum(own.num_bytes for own in self._chunks)

    def view(self) -> TailView:
        """Return what is there, from any thread."""
        # Rows that are added meanwhile, and a chunk that takes the place of a smaller one, are not
        # in it; what is in it stays.
        chunks = self._chunks
        first = chunks[0].number if chunks else self._first
        return TailView(first, tuple((own, own.count) for own in chunks))

    def add(self, row: NewRow, offset: int) -> bool:
        """Add a row, unless it is there already: after a restart it may come again."""
        place = row.epoch, row.step
        if place <= self.last:
            return False
        newest = self._chunks[-1] if self._chunks else None
        if newest is None or newest.is_full or newest.epoch != row.epoch:
            number = self._first if newest is None else newest.number + 1
            newest = Chunk.begun(number, row)
            self._chunks = (*self._chunks, newest)
        elif not newest.fits(row):
            newest = newest.grown(row)
            self._chunks = (*self._chunks[:-1], newest)
        newest.add(row, offset)
        self.last = place
        self.num_added += 1
        return True

    def resume(self, chunk: Chunk) -> None:
        """Go on with a chunk that is in the store and not full."""
        self._chunks, self._first = (chunk,), chunk.number

    def drop(self, is_done: Callable[[Chunk], bool]) -> None:
        """Let go of the chunks at the beginning that are *is_done*; the newest stays."""
        kept = self._chunks
        while len(kept) > 1 and is_done(kept[0]):
            kept = kept[1:]
        self._chunks = kept
