"""Recording of curves: rows of closed frames in memory, blocks of them in the transaction.

Blocks are written in the transaction of the entries that complete them, and the rows of an open
block before the state of its run is saved. A restart, which computes anew what came after that
save, passes over each row that is stored.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from gradwatch_server.clock import Clock
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.entries import Forgotten
from gradwatch_server.core.frames.closed_frame import ClosedFrame
from gradwatch_server.core.frames.gains import GainFrame
from gradwatch_server.core.state import State
from gradwatch_server.core.state_codec import decode, encode
from gradwatch_server.curves.facts import Track, height
from gradwatch_server.curves.group_numbers import GroupNumbers
from gradwatch_server.curves.items import ItemNames
from gradwatch_server.curves.layers import KnownLayers
from gradwatch_server.curves.levels import Levels, TailView
from gradwatch_server.curves.new_row import NewRow, row_of_frame, row_of_gains, rows_of_history
from gradwatch_server.curves.reader import History
from gradwatch_server.storage.curves import CurveStore
from gradwatch_server.storage.rows import StorageError

logger = logging.getLogger(__name__)

SHARE: Final = 0.1
"""Share of the engine's time that trimming may take."""

RETRY_NS: Final = 10_000_000_000
"""Time after a failed deletion until the next one."""

TRIM_NS: Final = 10_000_000_000
"""Time between two checks whether curves take too much room."""

IDLE_NS: Final = 30_000_000_000
"""Time after which an attempt without a new row leaves memory; a new row reads it again."""

MAX_BYTES: Final = 256 << 20
"""Bytes of all attempts in memory; of more, those without a new row for longest go first."""

SLICE_BLOCKS: Final = 16
"""Blocks that are deleted at once."""

_LEVELS: Final = sorted((level for track in Track for level in track.levels), key=height)
"""All levels, the lowest of each track first."""


class AttemptCurves:
    """The curves of one attempt in memory, which go on after what is stored."""

    def __init__(self, store: CurveStore, run: str, attempt: int) -> None:
        self._store, self._of = store, (run, attempt)
        self._stored = store.stored(run, attempt)
        self._tracks = {track: Levels.resume(track, self._stored) for track in Track}
        self._layers = KnownLayers()
        if encoded := self._stored.layers():
            try:
                self._layers = decode(encoded, KnownLayers)
            except ValueError as error:
                logger.warning("the layers of the curves of run %s are read anew: %s", run, error)
        self._saved_layers = self._layers
        self._names = ItemNames(self._layers.items)
        self._group_numbers = GroupNumbers()
        self._groups: Mapping[str, BoolArray] | None = None
        self.num_seen = 0  # rows when it was looked at last
        self.shown: tuple[Mapping[Track, TailView], KnownLayers]
        """Rows that readers see, and the layers; from any thread."""
        self.show()

    @property
    def is_saved(self) -> bool:
        """Durability: true if the store has all of it."""
        return all(track.is_saved for track in self._tracks.values())

    @property
    def num_added(self) -> int:
        return sum(track.num_added for track in self._tracks.values())

    @property
    def num_bytes(self) -> int:
        return sum(track.num_bytes for track in self._tracks.values())

    @property
    def has_unsaved(self) -> bool:
        """Presence of blocks that the store does not have."""
        return any(track.unsaved for track in self._tracks.values())

    def show(self) -> None:
        self.shown = {track: levels.view() for track, levels in self._tracks.items()}, self._layers

    def add_frame(self, closed: ClosedFrame, number: int) -> None:
        """Add a frame, unless it is there already."""
        self._follow(closed)
        self._add(Track.FRAMES, row_of_frame(closed, self._names, self._group_numbers), number)
        rows = rows_of_history(closed)
        if rows is not None:
            self._tracks[Track.STEPS].extend(closed.epoch, rows, number, self._stored)

    def add_gains(self, gains: GainFrame, epoch: int, number: int) -> None:
        self._add(Track.GAINS, row_of_gains(gains, epoch, self._names), number)

    def _add(self, track: Track, row: NewRow, number: int) -> None:
        names = self._names.all()
        if self._layers.items is not names:
            self._layers = replace(self._layers, items=names)
        self._tracks[track].add(row, number, self._stored)

    def _follow(self, closed: ClosedFrame) -> None:
        names, layers = self._layers, closed.layers
        is_ordered = closed.is_ordered and (names.is_ordered or not names.names)
        groups = layers.groups()
        if (
            len(names) != len(layers.names)
            or names.is_ordered != is_ordered
            or self._groups is not groups
        ):
            self._layers = KnownLayers.of(layers, names.items, is_ordered=is_ordered)
            self._groups = groups

    def save_open(self) -> None:
        """Have the rows of open blocks written with the next `write`."""
        for track in self._tracks.values():
            track.save_open()

    def write(self) -> None:
        """Write what the store does not have."""
        blocks = [block for track in self._tracks.values() for block in track.unsaved]
        layers = self._layers
        encoded = None if layers is self._saved_layers else encode(layers)
        self._store.save(*self._of, blocks, encoded)

    def mark_saved(self) -> None:
        self._saved_layers = self._layers
        for track in self._tracks.values():
            track.mark_saved()

    def forget_pieces(self) -> None:
        """Let go of what can be read again."""
        for track in self._tracks.values():
            track.forget_pieces()


class CurveRecorder:
    """The curves of all attempts. The engine's thread writes; any thread reads."""

    def __init__(self, store: CurveStore, max_bytes: int, clock: Clock) -> None:
        """Read nothing yet."""
        self.number = 0  # that of the entry which is being applied, in the log of its run
        self._store = store
        self._max_bytes = max_bytes
        self._clock = clock
        self._kept: dict[tuple[str, int], AttemptCurves] = {}
        self._changed: dict[tuple[str, int], None] = {}  # those with rows that are not committed
        self._gone: dict[tuple[str, int], None] = {}  # those that are to be removed
        self._rest_until_ns = self._trim_ns = self._looked_ns = 0
        self._failed = self._missed = False

    @property
    def is_changed(self) -> bool:
        """Presence of rows that are not committed."""
        return bool(self._changed)

    def begin(self) -> None:
        """Begin with what the store has: the engine reads it, maybe for the second time."""
        self._kept, self._changed, self._gone = {}, {}, {}

    def find_gone(self, state: State) -> None:
        """Find the curves of attempts that are gone, once the state is that of the log."""
        attempts = {
            (run.name, attempt.number) for run in state.runs.values() for attempt in run.attempts
        }
        stored = ((size.run, size.attempt) for size in self._store.sizes())
        self._gone |= dict.fromkeys(key for key in stored if key not in attempts)

    def add(self, run: str, attempt: int, closed: ClosedFrame) -> None:
        """Take in the next frame of an attempt; it may have had it before a restart."""
        self._add((run, attempt), lambda curves: curves.add_frame(closed, self.number))

    def add_gains(self, run: str, attempt: int, gains: GainFrame, epoch: int) -> None:
        self._add((run, attempt), lambda curves: curves.add_gains(gains, epoch, self.number))

    def _add(self, of: tuple[str, int], add: Callable[[AttemptCurves], None]) -> None:
        """Let an attempt take something in.

        A fault in that costs the row: what the rules make of the frame does not depend on it.
        """
        try:
            kept = self._kept.get(of)
            if kept is None:
                kept = self._kept[of] = AttemptCurves(self._store, *of)
            add(kept)
            self._changed[of] = None
        except Exception:
            if not self._missed:
                logger.exception("a row of the curves of run %s is missing (told once)", of[0])
            self._missed = True

    @contextlib.contextmanager
    def history(self, run: str, attempt: int) -> Iterator[History]:
        """Open what there is of an attempt, from any thread."""
        # What is in memory first: what leaves it is in the store before.
        kept = self._kept.get((run, attempt))
        tails, layers = ({}, None) if kept is None else kept.shown
        with self._store.read(run, attempt) as stored:
            frames, gains, steps = (tails.get(track, TailView()) for track in Track)
            of_gains = History(stored, Track.GAINS, gains)
            of_steps = History(stored, Track.STEPS, steps)
            yield History(stored, Track.FRAMES, frames, layers, of_gains, of_steps)

    def write(self) -> None:
        """Write the blocks that are full, in the transaction of the entries."""
        for kept in map(self._kept.get, self._changed):
            if kept is not None and kept.has_unsaved:
                kept.write()

    def committed(self) -> None:
        """Let readers see all rows: the entries that they are of are committed."""
        for kept in map(self._kept.get, self._changed):
            if kept is not None:
                if kept.has_unsaved:
                    kept.mark_saved()
                kept.show()
        self._changed.clear()

    def save_open(self, runs: Iterable[str]) -> None:
        """Have `write` write the open blocks of runs, too, whose state is to be saved."""
        names = set(runs)
        for key, kept in self._kept.items():
            if key[0] in names:
                kept.save_open()
                self._changed[key] = None

    def forget(self, gone: Forgotten) -> None:
        """Let go of attempts that leave memory."""
        for key in [key for key in self._kept if key[0] == gone.run and key[1] <= gone.attempts]:
            del self._kept[key]
            self._changed.pop(key, None)
        for size in self._store.sizes(gone.run):
            if size.attempt <= gone.attempts:
                self._gone[size.run, size.attempt] = None

    def run_slice(self, now_ns: int) -> bool:
        """Let idle attempts leave memory, and trim, if it is their turn.

        Return True if nothing is left to be done now.
        """
        if now_ns < self._rest_until_ns:
            return False
        try:
            if now_ns - self._looked_ns >= IDLE_NS:
                self._looked_ns = now_ns
                self._let_go()
            if busy := self._do_due(now_ns):
                spent_ns = self._clock.now_ns() - now_ns
                self._rest_until_ns = now_ns + round(spent_ns / SHARE)
            if self._failed:
                logger.warning("curves can be written again")
            self._failed = False
        except StorageError as error:
            if not self._failed:
                logger.warning("curves cannot be written, tried again (told once): %s", error)
            self._failed = busy = True
            self._rest_until_ns = now_ns + RETRY_NS
        return not busy

    def _let_go(self) -> None:
        """Let idle attempts leave memory, and more where all take too much."""
        total = 0
        for key, kept in list(self._kept.items()):
            moved, kept.num_seen = kept.num_added != kept.num_seen, kept.num_added
            if moved or not kept.is_saved:
                total += kept.num_bytes
                self._kept[key] = self._kept.pop(key)  # those that moved last come last
            else:
                del self._kept[key]
        for kept in list(self._kept.values()):
            if total > MAX_BYTES:
                total -= kept.num_bytes
                kept.forget_pieces()
                total += kept.num_bytes
        for key in list(self._kept):
            if total <= MAX_BYTES:
                return
            kept = self._kept[key]
            kept.save_open()
            if kept.has_unsaved:
                kept.write()
            total -= self._kept.pop(key).num_bytes

    def _do_due(self, now_ns: int) -> bool:
        if self._gone:
            key = next(iter(self._gone))
            if not self._store.remove(*key, SLICE_BLOCKS):
                del self._gone[key]
            return True
        if now_ns - self._trim_ns < TRIM_NS:
            return False
        if self._trim():
            return True
        self._trim_ns = now_ns
        return False

    def _trim(self) -> bool:
        """Delete the oldest blocks of the attempt that takes most, if all take too much.

        Those first that wider buckets stand for; if there are none, the beginning of the curve.
        """
        sizes = self._store.sizes()
        if sum(size.num_bytes for size in sizes) <= self._max_bytes:
            return False
        for largest in sorted(sizes, key=lambda size: -size.num_bytes):
            key = largest.run, largest.attempt
            for delete in (self._store.trim, self._store.drop):
                if any(delete(*key, level, SLICE_BLOCKS) for level in _LEVELS):
                    return True
        return False
