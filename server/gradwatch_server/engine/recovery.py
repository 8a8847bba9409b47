"""Recovery: runs of the store come into memory, in slices while the engine works.

Runs that were live come first, whether or not anybody is heard of: a rank that died meanwhile has
to be told within its session timeout. One that somebody asks for comes at once. What a run
missed while it was away becomes entries of its log.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.alert import isotime
from gradwatch_server.core.alerting.silences import fits
from gradwatch_server.core.entries import (
    Body,
    BudgetsSet,
    Resumed,
    RulesSet,
    SilenceAdded,
    SilenceRemoved,
)
from gradwatch_server.core.run import Run
from gradwatch_server.core.sequence import SequenceTracker
from gradwatch_server.core.state import State
from gradwatch_server.engine.applier import Applier
from gradwatch_server.engine.batch import Batch
from gradwatch_server.engine.curve_recorder import CurveRecorder
from gradwatch_server.engine.memory import RunMemory
from gradwatch_server.engine.publishing import PublishedState, Publishing
from gradwatch_server.engine.run_log import RunLog
from gradwatch_server.storage.checkpointer import Checkpointer
from gradwatch_server.storage.checkpoints import decode_run, read_open_records
from gradwatch_server.storage.rows import StorageError, StorageFault
from gradwatch_server.storage.store import Store
from gradwatch_wire.health import RankState

logger = logging.getLogger(__name__)

SLICE_RUNS: Final = 8
"""Runs that come into memory in one round: a small one takes 1.3 ms, and records wait for it."""

WRITTEN_ENTRIES: Final = 256
"""Entries after which blocks of curves are written."""


@dataclass(kw_only=True)
class Recovery:
    """Runs that are in the store and not yet in memory.

    Args:
        away: Names of the others, in the order in which they come; shared with those who count.
    """

    store: Store
    state: State
    away: dict[str, None]
    checkpointer: Checkpointer
    applier: Applier
    recorder: CurveRecorder
    memory: RunMemory
    publishing: Publishing
    published: PublishedState
    tracker: SequenceTracker
    run_log: RunLog
    clock: Clock
    _is_complete: bool = False

    def __post_init__(self) -> None:
        self.published.num_away = len(self.away)

    @property
    def is_done(self) -> bool:
        """Completion: true once all runs are in memory."""
        return self._is_complete

    def is_away(self, name: str) -> bool:
        """Tell whether a run is not in memory yet."""
        return name in self.away

    def run_slice(self, batch: Batch) -> None:
        """Bring the next runs into memory."""
        if self._is_complete:
            return
        for name in list(self.away)[:SLICE_RUNS]:
            self.ensure(name, batch)
        if not self.away:
            self._is_complete = True
            self.recorder.find_gone(self.state)

    def ensure(self, name: str, batch: Batch) -> None:
        """Bring a run into memory, unless it is there; add the entries for what it missed."""
        if name not in self.away:
            return
        run = self._read(name)
        del self.away[name]
        self.published.summaries.pop(name, None)
        self.memory.mark_changed(name)
        self.memory.measure()
        self.published.num_away = len(self.away)
        self.publishing.mark_changed(name)
        if run is None:
            return
        self._wait_anew(run)
        now_ns = self.clock.now_ns()
        for body in self._missed(run):
            batch.add(name, now_ns, body)

    def _read(self, name: str) -> Run | None:
        """Bring a run to the end of its log."""
        run = self.checkpointer.load(name, self.state.window_steps)
        if run is not None:
            self.state.add(run)
        start = self.store.state.forgotten(name).position if run is None else run.position
        self.store.log.skip_to(name, start)
        if self.store.log.last(name) > start:
            entries = self.store.log.entries(name, start)
            while tail := list(islice(entries, WRITTEN_ENTRIES)):
                self.applier.apply_all(name, [entry for _, entry in tail], tail[0][0])
                if len(tail) == WRITTEN_ENTRIES:
                    self._write_curves()
        run = self.state.runs.get(name)
        if run is not None:
            run.is_relearnt = self.checkpointer.is_damaged(name)
        return run

    def read_committed(self, name: str) -> Run | None:
        """Return a run as the store has it, beside the one in memory, None if it has none.

        While a commit fails the state is ahead of the store, and readers are shown this one.
        """
        saved = self.store.state.run(name)
        state = State(self.state.window_steps, self.state.rules)
        if saved is not None:
            with contextlib.suppress(Exception):  # a damaged checkpoint: the log has what is left
                known = decode_run(saved, state.window_steps)
                read_open_records(known, self.store.log)
                state.add(known)
        run = state.runs.get(name)
        start = self.store.state.forgotten(name).position if run is None else run.position
        for number, entry in self.store.log.entries(name, start):
            with contextlib.suppress(Exception):  # one that cannot be applied is counted already
                state.apply_to(name, entry, number)
        return state.runs.get(name)

    def _write_curves(self) -> None:
        """Write blocks that are full, with which a long log would fill memory."""
        try:
            with self.store.transaction():
                self.recorder.write()
        except StorageError as error:
            if error.fault in (StorageFault.DAMAGED, StorageFault.GONE):
                raise
            return  # the next commit writes them
        self.recorder.committed()

    def _wait_anew(self, run: Run) -> None:
        """Let each rank have its time again: while the aggregator was down none could reach it."""
        newest_ns = max(max(session.last_ns, session.heard_ns) for session in run.sessions.values())
        if not self.clock.catch_up(newest_ns):
            logger.warning(
                "the log of run %s has entries of %s, which the system's clock is far behind; "
                "times go on from %s, by the system's clock, and those of the entries stay",
                run.name,
                isotime(newest_ns),
                isotime(self.clock.now_ns()),
            )
        self.tracker.adopt({session.id: session.acked for session in run.sessions.values()})
        self.run_log.adopt(run)
        now_ns = self.clock.now_ns()
        for session in run.sessions.values():
            if session.state is RankState.ALIVE:
                self.published.last_seen[session.id] = now_ns

    def _missed(self, run: Run) -> Iterator[Body]:
        """Yield what changed for a run while it was away."""
        if run.is_expected:
            yield Resumed()
        if run.rules != self.state.rules:
            yield RulesSet(self.state.rules.json_text)
        if run.budgets != self.state.budgets:
            yield BudgetsSet(self.state.budgets.model_dump_json())
        now_ns = self.clock.now_ns()
        for silence in self.state.silences:
            is_missing = silence.id not in run.silences and silence.until_ns > now_ns
            if is_missing and fits(silence.run, run.name):
                yield SilenceAdded(silence)
        for silence in list(run.silences):
            if silence.id not in self.state.silences and silence.until_ns > now_ns:
                yield SilenceRemoved(silence.id)
