"""The checkpointer: when a run is saved, what is read of it at a start, when the log is trimmed.

It belongs to the engine's thread, and works in slices, so that no record waits long for its
acknowledgement.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from gradwatch_server.clock import Clock
from gradwatch_server.core.run import Run
from gradwatch_server.core.state import State
from gradwatch_server.storage.checkpoints import decode_run, encode_run, read_open_records
from gradwatch_server.storage.retention import SLICE_BYTES, Retention, RetentionPolicy
from gradwatch_server.storage.rows import ForgottenRun, RunSave, StorageError
from gradwatch_server.storage.store import Store

logger = logging.getLogger(__name__)

MAX_TAIL: Final = 1_000
"""Entries of all runs after which they are saved: a restart applies so many in some 0.3 s."""

MAX_WEIGHT: Final = 8
"""Ranks of a run whose entries of one step count as one: they are applied so many times faster."""

SHARE: Final = 0.1
"""Share of the engine's time that encoding runs may take, and as much for trimming."""

MAX_SHARE: Final = 0.35
"""The same once more than `MAX_TAIL` entries would have to be applied, in proportion to these."""

SLICE_NS: Final = 4_000_000
"""Time in which runs are encoded at once: a small one takes 0.7 ms, and there may be 1,000."""

LOOK_NS: Final = 100_000_000
"""Time between two looks at which runs are due."""

RETRY_NS: Final = 10_000_000_000
"""Time after a failed save until the next one."""

TRIM_NS: Final = 10_000_000_000
"""Nanoseconds between checks whether the log is to be trimmed."""


@dataclass(slots=True)
class _Unsaved:
    """A run that changed since it was saved."""

    position: int
    covered: int
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
        self._damaged: set[str] = set()  # runs whose checkpoint could not be read
        self._rest_until_ns = 0
        self._trim_ns = 0
        self._failed = self._trim_failed = False
        self._is_trimmed = True
        self.is_done = True
        """Whether no run is due that there was no time for."""

    def find_runs(self) -> dict[str, bytes | None]:
        """Return the runs that a start brings into memory, those first that were live.

        Each with its encoded summary if it had ended.
        """
        saved = self._store.state.runs()
        live = [name for name in self._store.log.runs() if name not in saved]
        live = [name for name in live if self._has_entries(name)]
        live += [name for name, summary in saved.items() if summary is None]
        ended = {name: summary for name, summary in saved.items() if summary is not None}
        return dict.fromkeys(live) | ended

    def _has_entries(self, name: str) -> bool:
        """Tell whether the log of a run goes on after it left memory."""
        return self._store.log.last(name) > self._store.state.forgotten(name).position

    def load(self, name: str, window_steps: int) -> Run | None:
        """Return a run as it was saved, None if it was not, or cannot be read."""
        saved = self._store.state.run(name)
        if saved is None:
            return None
        try:
            run = decode_run(saved, window_steps)
            read_open_records(run, self._store.log)
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not what was written
            logger.warning(
                "the checkpoint of run %s cannot be used, its log is read: %r", name, error
            )
            self._damaged.add(name)
            return None
        self._newest[name] = run.attempts[-1].number
        return run

    def is_damaged(self, name: str) -> bool:
        """Tell whether the checkpoint of a run could not be read."""
        return name in self._damaged

    def covered(self, run: str, state: State) -> int:
        """Return the newest entry of a run of which a restart needs nothing any more."""
        unsaved, known = self._unsaved.get(run), state.runs.get(run)
        if known is None:
            return self._store.state.forgotten(run).position
        return _covered(known) if unsaved is None else unsaved.covered

    def begin(self, name: str, run: Run | None) -> None:
        """Record that entries are about to change a run, None before it begins."""
        unsaved = self._unsaved.get(name)
        if unsaved is None:
            position, covered = (0, 0) if run is None else (run.position, _covered(run))
            unsaved = _Unsaved(position, covered, self._clock.now_ns())
            self._unsaved[name] = unsaved
        if run is not None:
            unsaved.attempts.update(attempt.number for attempt in run.judged)

    def end(self, name: str, run: Run | None) -> None:
        """Record which attempts of a run the entries changed, None if it left memory."""
        unsaved = self._unsaved.get(name)
        if run is not None and unsaved is not None:
            unsaved.attempts |= run.touched
            run.touched.clear()

    def forget(self, run: Run) -> None:
        """Note that a run left memory; `write_forgotten` keeps its name."""
        self._unsaved.pop(run.name, None)
        self._newest.pop(run.name, None)
        self._forgotten[run.name] = ForgottenRun(run.position, run.num_forgotten)

    def write_forgotten(self, now_ns: int) -> None:
        """Write the names of the runs that left memory, in the transaction of the entries."""
        for name, forgotten in self._forgotten.items():
            self._store.state.forget(name, forgotten, now_ns)

    def committed(self) -> None:
        self._forgotten.clear()

    def due(self, now: int, state: State, *, at_end: bool = False) -> list[RunSave]:
        """Return the runs to be saved now, encoded: as many as there is time for.

        The caller writes them in the transaction of the entries that they stand for, and calls
        `saved` or `put_off` after it.
        """
        if now < self._rest_until_ns and not at_end:
            return []
        too_old_ns = now - round(self._policy.checkpoint_s * 1e9)
        tail = self._tail(state)
        is_long = at_end or tail >= MAX_TAIL
        due = [
            n for n, unsaved in self._unsaved.items() if is_long or unsaved.since_ns <= too_old_ns
        ]
        saves = self.encode(due, state)
        self.is_done = len(saves) == len(due)
        if saves:
            spent = self._clock.now_ns() - now
            share = min(SHARE * max(1.0, tail / MAX_TAIL), MAX_SHARE)
            self._rest_until_ns = now + round(spent / share)
        else:
            self._rest_until_ns = now + LOOK_NS
        return saves

    def encode(self, names: Sequence[str], state: State) -> list[RunSave]:
        """Return the first of these runs, encoded: as many as there is time for."""
        saves: list[RunSave] = []
        size, began_ns = 0, self._clock.now_ns()
        for name in names:
            if size > SLICE_BYTES or self._clock.now_ns() - began_ns > SLICE_NS:
                break
            saves.append(self._encode(name, state, began_ns))
            size += saves[-1].num_bytes
        return saves

    def saved(self, saves: Sequence[RunSave], state: State) -> None:
        """Note that runs are saved as `due` returned them."""
        for save in saves:
            del self._unsaved[save.run]
            if save.body is not None:
                self._newest[save.run] = state.runs[save.run].attempts[-1].number
        if saves and self._failed:
            logger.warning("checkpoints can be written again")
            self._failed = False

    def put_off(self, now: int, reason: StorageError) -> None:
        """Note that runs could not be saved: they are due again later."""
        if not self._failed:
            logger.warning("no checkpoint can be written, tried again (told once): %s", reason)
        self._failed = True
        self._rest_until_ns = now + RETRY_NS

    def _tail(self, state: State) -> float:
        """Return how many entries a restart would have to apply, in those of runs of one rank."""
        tail = 0.0
        for name, unsaved in self._unsaved.items():
            run = state.runs.get(name)
            if run is not None:
                ranks = min(run.attempts[-1].world, MAX_WEIGHT)
                tail += (run.position - unsaved.position) / ranks
        return tail

    def trim(self, now: int, state: State) -> bool:
        """Trim one slice, if it is its turn; return True if nothing is left to be trimmed now."""
        if now < self._trim_ns:
            return self._is_trimmed
        try:
            self._is_trimmed = not self._retention.trim(now, _Kept(self, state))
        except StorageError as error:
            if not self._trim_failed:
                logger.warning("the store cannot be trimmed, tried again (told once): %s", error)
            self._trim_failed, self._is_trimmed, self._trim_ns = True, True, now + TRIM_NS
            return True
        self._trim_failed, spent = False, self._clock.now_ns() - now
        self._trim_ns = now + (TRIM_NS if self._is_trimmed else round(spent / SHARE))
        return self._is_trimmed

    def _encode(self, name: str, state: State, now_ns: int) -> RunSave:
        run = state.runs.get(name)
        if run is None:  # it has no attempt yet
            return RunSave(run=name)
        return encode_run(run, self._newest.get(name), self._unsaved[name].attempts, now_ns)


def _covered(run: Run) -> int:
    """Return the newest entry that a saved form of the run as it is now does not need."""
    oldest = min((record.entry for record in run.open_records()), default=run.position + 1)
    return oldest - 1
