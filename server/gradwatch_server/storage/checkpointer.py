"""The checkpointer: when a run is saved, what is read of it at a start, when the log is trimmed.

It belongs to the engine's thread, and works in slices between two batches, so that no record
waits long for its acknowledgement.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gradwatch_server.clock import Clock
from gradwatch_server.core.entries import Entry
from gradwatch_server.core.run import Run
from gradwatch_server.core.state import State
from gradwatch_server.storage.checkpoints import decode_run, encode_run
from gradwatch_server.storage.retention import SLICE_BYTES, Retention, RetentionPolicy
from gradwatch_server.storage.store import ForgottenRun, RunSave, SavedRun, StorageError, Store

logger = logging.getLogger(__name__)

MAX_TAIL: Final = 1_000
"""Entries of all runs after which they are saved: a restart applies so many in some 0.3 s."""

MAX_WEIGHT: Final = 8
"""Ranks of a run whose entries of one step count as one: they are applied so many times faster."""

SHARE: Final = 0.1
"""Share of the engine's time that saving and trimming may take."""

MAX_SHARE: Final = 0.35
"""The same once more than `MAX_TAIL` entries would have to be applied, in proportion to these."""

SLICE_NS: Final = 10_000_000
"""Time in which runs are encoded at once: a small one takes 0.7 ms, and there may be 1,000."""

FINISH_NS: Final = 1_000_000_000
"""Time for saving at the end; what is not saved then is applied at the next start."""

TRIM_NS: Final = 10_000_000_000
"""How often it is looked whether something is to be trimmed."""


@dataclass(slots=True)
class _Unsaved:
    """A run that changed since it was saved.

    Args:
        position: The newest entry that its saved form has.
        since_ns: When the first entry after that was applied.
        attempts: Numbers of the attempts that changed.
    """

    position: int
    since_ns: int
    attempts: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Kept:
    """Entries and heads that must stay in the log of a run."""

    checkpointer: Checkpointer
    state: State

    def covered(self, run: str) -> int:
        """Return the newest entry that may go."""
        return self.checkpointer.covered(run, self.state)

    def sessions(self, run: str) -> Collection[bytes] | None:
        """Return the sessions in memory, None if the run is not."""
        known = self.state.runs.get(run)
        return None if known is None else known.sessions.keys()


class Checkpointer:
    """Saves and trims what one engine holds."""

    def __init__(self, store: Store, policy: RetentionPolicy, clock: Clock) -> None:
        self._store = store
        self._policy = policy
        self._clock = clock
        self._retention = Retention(store, policy)
        self._unsaved: dict[str, _Unsaved] = {}  # the one that waits longest first
        self._newest: dict[str, int] = {}  # run -> its newest attempt that is saved
        self._forgotten: dict[str, ForgottenRun] = {}  # not committed yet
        self._rest_until_ns = 0
        self._trim_ns = 0
        self._trims_first = False
        self._failed = False
        self.before_save: Callable[[Sequence[str]], None] = lambda _runs: None

    def restore(self, state: State) -> Iterator[tuple[str, int, Entry]]:
        """Put the saved runs into a state, each with its newest good checkpoint.

        Yield the entries after it, each with its run and number; the caller applies them.

        Raises:
            StorageError: If the store cannot be read.
        """
        for name in dict.fromkeys((*self._store.state.runs(), *self._store.log.runs())):
            forgotten = self._store.state.forgotten(name)
            saved = self._store.state.run(name)
            run = None if saved is None else self._decode(name, saved, state.window_steps)
            if run is not None:
                state.add(run)
                self._newest[name] = run.attempts[-1].number
            start = forgotten.position if run is None else run.position
            self._store.log.skip_to(name, start)
            if self._store.log.last(name) > start:
                for number, entry in self._store.log.entries(name, start):
                    yield name, number, entry
            if saved is not None and run is None and name in state.runs:
                state.runs[name].is_relearnt = True
        # As they were: readers see them in the order in which they began.
        in_order = sorted(state.runs.items(), key=lambda item: item[1].created_ns)
        state.runs = dict(in_order)

    def _decode(self, name: str, saved: SavedRun, window_steps: int) -> Run | None:
        """Return a run as it was saved, None if that cannot be read."""
        try:
            return decode_run(saved, window_steps)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not what was written
            logger.warning(
                "the checkpoint of run %s cannot be used, its log is read: %r", name, error
            )
            return None

    def covered(self, run: str, state: State) -> int:
        """Return the newest entry of a run of which a restart needs nothing any more."""
        unsaved, known = self._unsaved.get(run), state.runs.get(run)
        if known is None:
            return self._store.state.forgotten(run).position
        return known.position if unsaved is None else unsaved.position

    def note(self, name: str, entry: Entry, state: State) -> None:
        """Note what the next entry of a run is about to change."""
        run = state.runs.get(name)
        unsaved = self._unsaved.get(name)
        if unsaved is None:
            position = 0 if run is None else run.position
            unsaved = self._unsaved[name] = _Unsaved(position, self._clock.now_ns())
        if run is not None:
            unsaved.attempts |= run.touched_by(entry)

    def forget(self, run: Run) -> None:
        """Note that a run left memory; `write_forgotten` keeps its name."""
        self._unsaved.pop(run.name, None)
        self._newest.pop(run.name, None)
        self._forgotten[run.name] = ForgottenRun(run.position, run.num_forgotten)

    def write_forgotten(self, now_ns: int) -> None:
        """Write the names of the runs that left memory, in the transaction of the entries.

        Raises:
            StorageError: If the disk is full or fails.
        """
        for name, forgotten in self._forgotten.items():
            self._store.state.forget(name, forgotten, now_ns)

    def committed(self) -> None:
        """Note that the entries that were applied are committed."""
        self._forgotten.clear()

    def work(self, now: int, state: State) -> bool:
        """Do one slice of what is due, if it is its turn; return True if nothing is due now."""
        if now < self._rest_until_ns:
            return False
        try:
            busy = self._do_due(now, state)
        except StorageError as error:
            self._warn(error)
            self._rest_until_ns = now + 10_000_000_000
            return False
        if busy:
            spent = self._clock.now_ns() - now
            share = min(SHARE * max(1.0, self._tail(state) / MAX_TAIL), MAX_SHARE)
            self._rest_until_ns = now + round(spent / share)
        return not busy

    def _tail(self, state: State) -> float:
        """Return how many entries a restart would have to apply, in those of runs of one rank."""
        tail = 0.0
        for name, unsaved in self._unsaved.items():
            run = state.runs.get(name)
            if run is not None:
                ranks = min(run.attempts[-1].world, MAX_WEIGHT)
                tail += (run.position - unsaved.position) / ranks
        return tail

    def _do_due(self, now: int, state: State) -> bool:
        """Save or trim; in turns, for a busy engine always has something to save."""
        self._trims_first = not self._trims_first
        if self._trims_first and self._trim_due(now, state):
            return True
        return self._save_due(now, state) or (not self._trims_first and self._trim_due(now, state))

    def finish(self, state: State) -> None:
        """Save what there is time for, so that the next start is quick."""
        deadline_ns = self._clock.now_ns() + FINISH_NS
        try:
            while self._unsaved and self._clock.now_ns() < deadline_ns:
                self._save(list(self._unsaved), state)
        except StorageError as error:
            self._warn(error)

    def _warn(self, error: StorageError) -> None:
        if not self._failed:
            logger.warning("no checkpoint can be written, tried again (told once): %s", error)
        self._failed = True

    def _save_due(self, now: int, state: State) -> bool:
        too_old_ns = now - round(self._policy.checkpoint_s * 1e9)
        is_long = self._tail(state) >= MAX_TAIL
        due = [n for n, own in self._unsaved.items() if is_long or own.since_ns <= too_old_ns]
        if due:
            self._save(due, state)
        elif self._failed:
            logger.warning("checkpoints can be written again")
            self._failed = False
        return bool(due)

    def _save(self, due: Sequence[str], state: State) -> None:
        """Save the runs of these that have waited longest, as many as there is time for.

        Raises:
            StorageError: If the disk is full or fails; nothing was written then.
        """
        saves: list[RunSave] = []
        size, began_ns = 0, self._clock.now_ns()
        for name in due:
            if size > SLICE_BYTES or self._clock.now_ns() - began_ns > SLICE_NS:
                break
            saves.append(self._encode(name, state))
            size += saves[-1].num_bytes
        self.before_save([save.run for save in saves])
        self._store.state.save({}, saves)
        for save in saves:
            del self._unsaved[save.run]
            if save.body is not None:
                self._newest[save.run] = state.runs[save.run].attempts[-1].number

    def _encode(self, name: str, state: State) -> RunSave:
        run = state.runs.get(name)
        if run is None:  # it has no attempt yet
            return RunSave(run=name)
        return encode_run(run, self._newest.get(name), self._unsaved[name].attempts)

    def _trim_due(self, now: int, state: State) -> bool:
        if now < self._trim_ns:
            return False
        if self._retention.trim(now, _Kept(self, state)):
            return True
        self._trim_ns = now + TRIM_NS
        return False
