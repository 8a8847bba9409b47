"""The tail of an attempt: its newest rows, as far as they are not all in the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.closed_frame import ClosedFrame
from gradwatch_server.series.chunk import Chunk
from gradwatch_server.series.layers import KnownLayers


@dataclass(frozen=True, slots=True)
class TailView:
    """What a reader sees of a tail.

    Args:
        first: Number of its first chunk: those before are in the store.
        chunks: The chunks, each with the rows that it had, oldest first.
        layers: The layers.
    """

    first: int
    chunks: tuple[tuple[Chunk, int], ...]
    layers: KnownLayers


class Tail:
    """The newest rows of an attempt.

    Args:
        first: Number of the chunk that begins it.
        last: Epoch and step of the newest row before it, which stands in the store.
    """

    def __init__(self, first: int = 0, last: tuple[int, int] = (-1, -1)) -> None:
        self.last = last
        self.num_added = 0
        self.layers = KnownLayers()
        self._first = first
        self._chunks: tuple[Chunk, ...] = ()
        self._groups: Mapping[str, BoolArray] | None = None

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
        return TailView(first, tuple((own, own.count) for own in chunks), self.layers)

    def add(self, closed: ClosedFrame, offset: int) -> None:
        """Add a frame, unless it is there already: after a restart it may come again."""
        place = closed.epoch, closed.frame.step
        if place <= self.last:
            return
        newest = self._chunks[-1] if self._chunks else None
        if newest is None or newest.is_full or newest.epoch != closed.epoch:
            number = self._first if newest is None else newest.number + 1
            newest = Chunk.begun(number, closed)
            self._chunks = (*self._chunks, newest)
        elif not newest.fits(closed.frame):
            newest = newest.grown(closed.frame)
            self._chunks = (*self._chunks[:-1], newest)
        newest.add(closed, offset)
        self._follow(closed)
        self.last = place
        self.num_added += 1

    def _follow(self, closed: ClosedFrame) -> None:
        own, layers = self.layers, closed.layers
        is_ordered = closed.is_ordered and (own.is_ordered or not own.names)
        groups = layers.groups()
        if (
            len(own) != len(layers.names)
            or own.is_ordered != is_ordered
            or self._groups is not groups
        ):
            self.layers, self._groups = KnownLayers.of(layers, is_ordered=is_ordered), groups

    def resume(self, chunk: Chunk) -> None:
        """Go on with a chunk that is in the store and not full."""
        self._chunks, self._first = (chunk,), chunk.number

    def drop(self, is_done: Callable[[Chunk], bool]) -> None:
        """Let go of the chunks at the beginning that are *is_done*; the newest stays."""
        kept = self._chunks
        while len(kept) > 1 and is_done(kept[0]):
            kept = kept[1:]
        self._chunks = kept
