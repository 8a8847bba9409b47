"""The curves of one attempt: its newest rows, and up to where the store has them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self

import numpy as np

from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.closed_frame import ClosedFrame
from gradwatch_server.core.frames.gains import GainFrame
from gradwatch_server.series.chunk import Chunk
from gradwatch_server.series.columns import RUN_TABLE
from gradwatch_server.series.encoding import (
    DamagedChunkError,
    decode_arrays,
    decode_blocks,
    encode_arrays,
    encode_layers,
    encode_rows,
)
from gradwatch_server.series.group_numbers import GroupNumbers
from gradwatch_server.series.items import ITEM_TABLES, ItemNames
from gradwatch_server.series.layers import KnownLayers
from gradwatch_server.series.new_row import row_of_frame, row_of_gains
from gradwatch_server.series.tail import Tail, TailView
from gradwatch_server.storage.series_store import ChunkFacts, SavedSeriesChunk, SeriesStore, Track
from gradwatch_wire.columns import L2, NONFINITE_COUNTS

logger = logging.getLogger(__name__)

_ALL: Final = 1 << 40


def encode_chunk(chunk: Chunk, *, is_closed: bool, track: Track = Track.FRAMES) -> SavedSeriesChunk:
    """Return a chunk as it is written."""
    rows = slice(chunk.count)
    facts = ChunkFacts(
        level=track,
        number=chunk.number,
        epoch=chunk.epoch,
        first_step=int(chunk.steps[0]),
        last_step=int(chunk.steps[chunk.count - 1]),
        entries=chunk.count,
        is_closed=is_closed,
    )
    head = [chunk.steps[rows], chunk.times_ns[rows], chunk.skipped[rows], chunk.offsets[rows]]
    tables = {RUN_TABLE: encode_rows(chunk.rows(RUN_TABLE))}
    if chunk.num_layers and chunk.columns:
        columns = dict.fromkeys((*chunk.columns, *NONFINITE_COUNTS))
        tables |= {name: encode_rows(chunk.rows(name)) for name in columns}
    tables |= {name: encode_rows(chunk.rows(name)) for name in chunk.items}
    return SavedSeriesChunk(facts, encode_arrays(head), tables)


def decode_chunk(facts: ChunkFacts, head: bytes, tables: Mapping[str, bytes]) -> Chunk:
    """Return a chunk to which rows may be added.

    Raises:
        DamagedChunkError: If it is not what was written.
    """
    steps, times_ns, skipped, offsets = decode_arrays(head)
    fills = (np.nan, False)
    found = {name: decode_blocks(_reader(body), None, fills) for name, body in tables.items()}
    run, run_known = found.pop(RUN_TABLE)
    items = {name: found.pop(name) for name in ITEM_TABLES & found.keys()}
    count = facts.entries
    present = found[L2][1] if L2 in found else np.zeros((count, 0), dtype=np.bool_)
    lengths = {len(steps), *(len(own[0]) for own in items.values())}
    if lengths != {count} or any(own[0].shape != present.shape for own in found.values()):
        msg = f"{count} rows and {len(steps)} steps"
        raise DamagedChunkError(msg)
    made = Chunk(facts.number, facts.epoch, max(count, 1), tuple(found), present.shape[1])
    made.steps[:], made.times_ns[:] = steps, times_ns
    made.skipped[:], made.offsets[:] = skipped, offsets
    made.run[:], made.run_known[:] = run, run_known
    made.present[:] = present
    for place, (values, _) in enumerate(found.values()):
        made.values[:, place] = values
    for name, (values, was_known) in items.items():
        made.add_table(name, values.shape[1])
        made.items[name][0][:], made.items[name][1][:] = values, was_known
    made.count = count
    return made


def _reader(body: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, length: body[offset : offset + length]


@dataclass(slots=True)
class _Recorded:
    """The tail of a track, and up to where the store has it."""

    tail: Tail
    number: int = -1
    count: int = 0

    @property
    def is_saved(self) -> bool:
        """Durability: true if the store has all of it."""
        newest = self.tail.chunks[-1] if self.tail.chunks else None
        return newest is None or (newest.number, newest.count) == (self.number, self.count)

    @property
    def has_full(self) -> bool:
        """Presence of a full chunk, which is to be written."""
        chunks = self.tail.chunks
        return len(chunks) > 1 or bool(chunks and chunks[-1].is_full)

    def encoded(self, track: Track) -> list[SavedSeriesChunk]:
        """Return the chunks that the store does not have as they are."""
        place = self.number, self.count
        chunks = [own for own in self.tail.chunks if (own.number, own.count) > place]
        return [
            encode_chunk(own, is_closed=own is not chunks[-1] or own.is_full, track=track)
            for own in chunks
        ]

    def note_saved(self) -> None:
        """Note that the store has all of it, and let go of what does not grow any more."""
        newest = self.tail.chunks[-1]
        self.number, self.count = newest.number, newest.count
        self.tail.drop(lambda chunk: chunk.number < newest.number)


@dataclass(frozen=True, slots=True)
class RecordedView:
    """Rows in memory as a reader sees them.

    Args:
        frames: Those of frames.
        gains: Those of gains.
        layers: What there are curves of.
    """

    frames: TailView
    gains: TailView
    layers: KnownLayers


@dataclass(slots=True)
class RecordedAttempt:
    """The newest rows of one attempt.

    Args:
        seen: Rows that there were when it was looked at last.
        shown: The rows that readers see, from any thread.
    """

    seen: int = 0
    shown: RecordedView = field(init=False)
    _tracks: dict[Track, _Recorded] = field(default_factory=dict)
    _names: ItemNames = field(default_factory=ItemNames)
    _group_numbers: GroupNumbers = field(default_factory=GroupNumbers)
    _layers: KnownLayers = field(default_factory=KnownLayers)
    _groups: Mapping[str, BoolArray] | None = None
    _saved_layers: KnownLayers | None = None

    @classmethod
    def resume(cls, store: SeriesStore, run: str, attempt: int) -> Self:
        """Return an attempt that goes on with the last chunks that are stored."""
        made = cls()
        for track in Track:
            made._tracks[track] = _resume(store, run, attempt, track)
        if any(own.number >= 0 for own in made._tracks.values()):
            with store.read(run, attempt, None) as (stored, _):
                made._layers = made._saved_layers = stored.layers()
            made._names = ItemNames(made._layers.items)
        made.show()
        return made

    @property
    def is_saved(self) -> bool:
        """Durability: true if the store has all of it."""
        return all(own.is_saved for own in self._tracks.values())

    @property
    def has_full(self) -> bool:
        """Presence of a full chunk, which is to be written."""
        return any(own.has_full for own in self._tracks.values())

    @property
    def num_added(self) -> int:
        """Rows that were added."""
        return sum(own.tail.num_added for own in self._tracks.values())

    @property
    def num_bytes(self) -> int:
        """About what it takes in memory."""
        return sum(own.tail.num_bytes for own in self._tracks.values())

    def show(self) -> None:
        """Let readers see all rows that there are now."""
        frames, gains = (self._tracks[track].tail.view() for track in Track)
        self.shown = RecordedView(frames, gains, self._layers)

    def add_frame(self, closed: ClosedFrame, offset: int) -> None:
        """Add a frame, unless it is there already."""
        self._follow(closed)
        row = row_of_frame(closed, self._names, self._group_numbers)
        self._follow_names()
        self._tracks[Track.FRAMES].tail.add(row, offset)

    def add_gains(self, gains: GainFrame, epoch: int, offset: int) -> None:
        """Add gains, unless they are there already."""
        row = row_of_gains(gains, epoch, self._names)
        self._follow_names()
        self._tracks[Track.GAINS].tail.add(row, offset)

    def _follow(self, closed: ClosedFrame) -> None:
        own, layers = self._layers, closed.layers
        is_ordered = closed.is_ordered and (own.is_ordered or not own.names)
        groups = layers.groups()
        if (
            len(own) != len(layers.names)
            or own.is_ordered != is_ordered
            or self._groups is not groups
        ):
            self._layers = KnownLayers.of(layers, own.items, is_ordered=is_ordered)
            self._groups = groups

    def _follow_names(self) -> None:
        names = self._names.all()
        if self._layers.items is not names:
            self._layers = replace(self._layers, items=names)

    def write(self, store: SeriesStore, run: str, attempt: int) -> bool:
        """Write all that the store does not have; return whether a chunk is closed by it.

        Raises:
            StorageError: If the disk is full or fails.
        """
        tracks = [(track, own) for track, own in self._tracks.items() if not own.is_saved]
        if not tracks:
            return False
        saved = [chunk for track, own in tracks for chunk in own.encoded(track)]
        layers = self._layers
        new_layers = None if layers is self._saved_layers else encode_layers(layers)
        store.save(run, attempt, saved, new_layers)
        self._saved_layers = layers
        for _, own in tracks:
            own.note_saved()
        self.show()
        return any(chunk.facts.is_closed for chunk in saved)


def _resume(store: SeriesStore, run: str, attempt: int, track: Track) -> _Recorded:
    """Return a track that goes on with its last chunk."""
    newest = store.newest(run, attempt, track)
    if newest is None:
        return _Recorded(Tail())
    tail = Tail(newest.number + 1, (newest.epoch, newest.last_step))
    if newest.is_closed:
        return _Recorded(tail, newest.number, newest.entries)
    own = run, attempt, int(track), newest.number
    bodies = {}
    for table in store.tables(*own):
        with store.body(*own, table) as read:
            bodies[table] = b"" if read is None else read(0, _ALL)
    try:
        tail.resume(decode_chunk(newest, store.head(*own), bodies))
    except (DamagedChunkError, ValueError, TypeError, KeyError) as error:
        logger.warning("curves of run %s go on in a chunk of their own: %s", run, error)
    return _Recorded(tail, newest.number, newest.entries)
