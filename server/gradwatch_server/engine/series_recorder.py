"""Keeps the rows of closed frames: in memory while they are new, in the store from then on.

A run's rows are in the store before its state is saved, so that a restart, which computes anew what
came after that save, finds each row exactly once: one that is there already is passed over.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from gradwatch_server.clock import Clock
from gradwatch_server.core.entries import Forgotten
from gradwatch_server.core.frames.closed_frame import ClosedFrame
from gradwatch_server.core.frames.gains import GainFrame
from gradwatch_server.core.state import State
from gradwatch_server.engine.recorded_attempt import RecordedAttempt
from gradwatch_server.series.history import History
from gradwatch_server.storage.series_compactor import Compactor
from gradwatch_server.storage.series_store import SeriesStore, Track, height
from gradwatch_server.storage.store import StorageError

logger = logging.getLogger(__name__)

SHARE: Final = 0.1
"""Share of the engine's time that making buckets and trimming may take."""

RETRY_NS: Final = 10_000_000_000
TRIM_NS: Final = 10_000_000_000
"""How often it is looked whether curves take too much room."""

LOOK_NS: Final = 30_000_000_000
"""How often it is looked which tails did not move: they leave memory, and are read again if they
do."""

MAX_TAIL_BYTES: Final = 256 << 20
"""What all tails may take in memory; of more, those that did not move for longest go first."""

SLICE_CHUNKS: Final = 16
"""Chunks that are deleted at once."""

_LEVELS: Final = sorted((level for track in Track for level in track.levels), key=height)
"""All levels, the lowest of each track first."""


class SeriesRecorder:
    """The curves of all attempts. The engine's thread writes; any thread reads."""

    def __init__(self, store: SeriesStore, max_bytes: int, clock: Clock) -> None:
        """Read nothing yet.

        Args:
            store: Where curves are kept.
            max_bytes: What they may take there.
            clock: Gives the time.
        """
        self.number = 0  # that of the entry which is being applied, in the log of its run
        self._store = store
        self._max_bytes = max_bytes
        self._clock = clock
        self._kept: dict[tuple[str, int], RecordedAttempt] = {}
        self._full: dict[tuple[str, int], None] = {}  # those with a chunk that is to be written
        self._gone: dict[tuple[str, int], None] = {}  # those that are to be removed
        self._compactor = Compactor(store)
        self._rest_until_ns = self._trim_ns = self._looked_ns = 0
        self._unseen: dict[tuple[str, int], None] = {}  # those with rows that readers may not see
        self._failed = self._missed = False

    def begin(self) -> None:
        """Begin with what the store has: the engine reads it, maybe for the second time."""
        self._kept, self._full, self._gone, self._unseen = {}, {}, {}, {}

    def look(self, state: State) -> None:
        """Find what an earlier process left to be done, once the state is that of the log."""
        attempts = {(run.name, own.number) for run in state.runs.values() for own in run.attempts}
        for size in self._store.sizes():
            own = size.run, size.attempt
            if own in attempts:
                self._compactor.note(*own)
            else:
                self._gone[own] = None

    def add(self, run: str, attempt: int, closed: ClosedFrame) -> None:
        """Take in the next frame of an attempt; it may have had it before a restart."""
        self._add((run, attempt), lambda own: own.add_frame(closed, self.number))

    def add_gains(self, run: str, attempt: int, gains: GainFrame, epoch: int) -> None:
        """Take in the next gains of an attempt likewise."""
        self._add((run, attempt), lambda own: own.add_gains(gains, epoch, self.number))

    def _add(self, of: tuple[str, int], add: Callable[[RecordedAttempt], None]) -> None:
        """Let an attempt take something in.

        A fault in that costs the row: what the rules make of the frame does not depend on it.
        """
        try:
            kept = self._kept.get(of)
            if kept is None:
                kept = self._kept[of] = RecordedAttempt.resume(self._store, *of)
            add(kept)
            self._unseen[of] = None
            if kept.has_full:
                self._full[of] = None
        except Exception:
            if not self._missed:
                logger.exception("a row of the curves of run %s is missing (told once)", of[0])
            self._missed = True

    def history(self, run: str, attempt: int) -> contextlib.AbstractContextManager[History]:
        """Open what there is of an attempt, from any thread."""
        return self._history(run, attempt)

    @contextlib.contextmanager
    def _history(self, run: str, attempt: int) -> Iterator[History]:
        # What is in memory first: what leaves it is in the store before.
        kept = self._kept.get((run, attempt))
        if kept is None:
            with self._store.read(run, attempt, None) as (frames, gains):
                yield History(None, frames, gains=History(None, gains))
            return
        own = kept.shown
        with self._store.read(run, attempt, own.frames.first, own.gains.first) as (frames, gains):
            yield History(own.frames, frames, own.layers, History(own.gains, gains))

    def show(self) -> None:
        """Let readers see all rows: the entries that they are of are committed."""
        for own in self._unseen:
            if own in self._kept:
                self._kept[own].show()
        self._unseen.clear()

    def before_save(self, runs: Iterable[str]) -> None:
        """Write all rows of some runs: their state is about to be saved.

        Raises:
            StorageError: If the disk is full or fails; the state is not to be saved then.
        """
        names = set(runs)
        for own in [own for own in self._kept if own[0] in names]:
            self._write(own)

    def _write(self, own: tuple[str, int]) -> None:
        if self._kept[own].write(self._store, *own):
            self._compactor.note(*own)
        self._full.pop(own, None)

    def forget(self, gone: Forgotten) -> None:
        """Let go of attempts that leave memory."""
        for own in [own for own in self._kept if own[0] == gone.run and own[1] <= gone.attempts]:
            del self._kept[own]
            self._full.pop(own, None)
        for size in self._store.sizes():
            if size.run == gone.run and size.attempt <= gone.attempts:
                self._gone[size.run, size.attempt] = None

    def work(self, now_ns: int) -> bool:
        """Write the chunks that are full; make buckets of them and trim, if it is their turn.

        Return True if nothing is left to be done now.
        """
        if self._failed and now_ns < self._rest_until_ns:
            return False
        try:
            for own in list(self._full):
                self._write(own)
            if now_ns - self._looked_ns >= LOOK_NS:
                self._looked_ns = now_ns
                self._let_go()
            if now_ns < self._rest_until_ns:
                return False
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
        """Let the tails leave memory that did not move, and more where all take too much."""
        total = 0
        for own, kept in list(self._kept.items()):
            moved, kept.seen = kept.num_added != kept.seen, kept.num_added
            if moved or not kept.is_saved:
                total += kept.num_bytes
                self._kept[own] = self._kept.pop(own)  # those that moved last come last
            else:
                del self._kept[own]
        for own in list(self._kept):
            if total <= MAX_TAIL_BYTES:
                return
            self._write(own)
            total -= self._kept.pop(own).num_bytes

    def _do_due(self, now_ns: int) -> bool:
        if self._gone:
            own = next(iter(self._gone))
            self._compactor.forget(*own)
            if not self._store.remove(*own, SLICE_CHUNKS):
                del self._gone[own]
            return True
        if self._compactor.step():
            return True
        if now_ns - self._trim_ns < TRIM_NS:
            return False
        if self._trim():
            return True
        self._trim_ns = now_ns
        return False

    def _trim(self) -> bool:
        """Delete the oldest chunks of the attempt that takes most, if all take too much.

        Those first that wider buckets stand for; if there are none, the beginning of the curve.
        """
        sizes = self._store.sizes()
        if sum(own.num_bytes for own in sizes) <= self._max_bytes:
            return False
        for largest in sorted(sizes, key=lambda own: -own.num_bytes):
            own = largest.run, largest.attempt
            for level in _LEVELS:
                if self._store.trim(*own, level, SLICE_CHUNKS):
                    return True
            for level in _LEVELS:
                if self._store.drop(*own, level, SLICE_CHUNKS):
                    return True
        return False
