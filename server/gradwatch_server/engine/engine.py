"""The engine: one thread that owns the store and the state.

Each round: take in a batch, fold it into the state, commit its records and alerts in one
transaction, then acknowledge, deliver the alerts, and publish for the readers.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gradwatch_server.budgets import BudgetUse
from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import Entry
from gradwatch_server.core.sequence import SequenceTracker
from gradwatch_server.core.state import State
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.engine.admission import Admission
from gradwatch_server.engine.alert_delivery import AlertChange, AlertDelivery
from gradwatch_server.engine.applier import Applier
from gradwatch_server.engine.batch import Batch
from gradwatch_server.engine.commands import CommandError, Commands, NewRules
from gradwatch_server.engine.curve_recorder import CurveRecorder
from gradwatch_server.engine.housekeeping import Housekeeping
from gradwatch_server.engine.intake import Intake
from gradwatch_server.engine.memory import RunMemory
from gradwatch_server.engine.metrics import EngineMetrics
from gradwatch_server.engine.publishing import PublishedState, Publishing
from gradwatch_server.engine.recovery import Recovery
from gradwatch_server.engine.run_commands import Deletions
from gradwatch_server.engine.run_log import RunLog
from gradwatch_server.engine.transaction import Transaction, read_silences
from gradwatch_server.engine.work_meter import WorkMeter
from gradwatch_server.errors import GradwatchError
from gradwatch_server.ingest.inbox import Inbox
from gradwatch_server.ingest.message import IngestMessage
from gradwatch_server.storage.checkpointer import Checkpointer
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_server.storage.rows import LogEntry, RunSave, StorageError, StorageFault
from gradwatch_server.storage.store import Store
from gradwatch_wire import Welcome
from gradwatch_wire.limits import BOOT_ID_BYTES

FINISH_NS: Final = 1_000_000_000
"""Time for saving at the end; what is not saved then is applied at the next start."""

VIEW_TIMEOUT_S: Final = 10.0
"""Time that a thread waits for a view."""

POLL_MS: Final = 50

BUSY_POLL_MS: Final = 5
"""Longest wait for a message while alerts are to be told, or views have to wait for their share."""

logger = logging.getLogger(__name__)


class Engine(threading.Thread):
    """Runs until `stop`."""

    publishing: Publishing

    def __init__(
        self,
        store: Store,
        ingest: Inbox,
        rules: Rules,
        *,
        clock: Clock,
        window_steps: int,
        session_timeout_s: float,
        on_alerts: Callable[[], None],
        on_failure: Callable[[], None],
        retention: RetentionPolicy | None = None,
        budget_use: BudgetUse | None = None,
        boot_id: bytes | None = None,
        http_url: str = "",
        stopping: threading.Event | None = None,
    ) -> None:
        """Find out which runs the store has.

        Args:
            store: The store, which only the engine writes.
            session_timeout_s: Silence after which a session is taken for lost, seconds.
            on_alerts: Called from the engine's thread after alerts were stored.

        Raises:
            GradwatchError: If the store cannot be read or written.
        """
        super().__init__(name="gradwatch-engine")
        self.clock = clock
        self.published = PublishedState()
        self.commands = Commands()
        self.metrics = EngineMetrics()
        self.budget_use = budget_use or BudgetUse()
        self.boot_id = boot_id or os.urandom(BOOT_ID_BYTES)
        self.refused: Mapping[str, int] = ingest.refused
        self.ingest_endpoint = ingest.endpoint
        self._store = store
        self.records = store.records
        self.deletions = Deletions(store)
        self._ingest = ingest
        self._on_alerts = on_alerts
        self._on_failure = on_failure
        self._retention = retention or RetentionPolicy()
        self._rules = rules
        self._window_steps = window_steps
        self._session_timeout_s = session_timeout_s
        self._http_url = http_url
        self.curves = CurveRecorder(store.curves, self._retention.curves_max_bytes, clock)
        self._stopping = stopping or threading.Event()
        try:
            self._begin()
        except StorageError as error:
            msg = f"cannot use the log {store.name}: {error}"
            raise GradwatchError(msg) from error

    def _begin(self) -> None:
        """Find out what there is; of a store that is damaged, what can be read of it.

        Raises:
            StorageError: If it cannot be read or written.
        """
        try:
            self._connect_parts()
        except StorageError as error:
            if error.fault is not StorageFault.DAMAGED:
                raise
            self._store.reset(error)
            self._connect_parts()

    def _connect_parts(self) -> None:
        """Make the parts that work on the state, with no run in memory yet."""
        published, store, clock, use = self.published, self._store, self.clock, self.budget_use
        state = self._state = State(self._window_steps, self._rules)
        state.budgets, state.recorder = use.limits.logged(), self.curves
        state.silences = read_silences(store)
        self.curves.begin()
        self._checkpointer = Checkpointer(store, self._retention, clock)
        self._tracker = SequenceTracker()
        stored = self._checkpointer.find_runs()
        away = dict.fromkeys(stored)
        published.summaries = {
            name: summary for name, summary in stored.items() if summary is not None
        }
        published.revisions = dict.fromkeys(away, 0)
        published.views = {}
        published.rules, published.silences = self._rules, tuple(state.silences)
        published.cursor = store.alert_events.newest()
        published.loss = store.find_loss()
        if published.loss is not None:
            logger.error("%s", published.loss.text)
        published.started_ns = clock.now_ns()
        self.publishing = Publishing(state, published, clock, self._ingest.wake)
        self._memory = RunMemory(state, away, use)
        self._run_log = RunLog(state, use.limits.log_lines_per_min)
        self._applier = Applier(
            state, self._checkpointer, self.publishing, published, self.curves, self._memory
        )
        self._recovery = Recovery(
            store=store,
            state=state,
            away=away,
            checkpointer=self._checkpointer,
            applier=self._applier,
            recorder=self.curves,
            memory=self._memory,
            publishing=self.publishing,
            published=published,
            tracker=self._tracker,
            run_log=self._run_log,
            clock=clock,
        )
        self._new_rules = NewRules(state)
        self._housekeeping = Housekeeping(
            state,
            published,
            clock.now_ns(),
            session_timeout_s=self._session_timeout_s,
            runs_max_age_s=self._retention.runs_max_age_s,
        )
        self._intake = Intake(
            self._ingest,
            state,
            self._tracker,
            published,
            self.metrics,
            self.boot_id,
            self._housekeeping.beat,
            Admission(self._ingest, state, away, self._memory, use),
            self._memory,
            self._recovery,
            store.state,
        )
        self._delivery = AlertDelivery(state, self._intake.peers, self._ingest)
        self._work = WorkMeter(self._ingest, self._intake.peers)
        self._transaction = Transaction(
            store=store,
            state=state,
            checkpointer=self._checkpointer,
            recorder=self.curves,
            published=published,
            clock=clock,
            stopping=self._stopping,
            wait=self._wait_for_store,
        )
        self._hello = Welcome(boot_id=self.boot_id, http=self._http_url)
        self._is_ahead = False  # whether the state has entries that are not committed
        self._quiet_until_ns = 0  # before it, only messages and requests need a round

    def find_view(self, run: str) -> RunView | None:
        """Return the view of a run, None if there is none now; for threads that may wait."""
        published = self.published
        view = published.newest(run)
        if view is not None or run not in published.revisions:
            return view
        try:
            return self.publishing.request(run).result(VIEW_TIMEOUT_S)
        except (CommandError, TimeoutError):
            return published.views.get(run)

    def set_rules(self, rules: Rules) -> None:
        """Put other rules in force with the next round; any thread may ask for it."""
        self._rules = rules
        self._new_rules.give(rules)

    def stop(self) -> None:
        """End the loop after the batch in hand, and wait for it."""
        self._stopping.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Do rounds until stopped."""
        try:
            while not self._stopping.is_set():
                self._round()
            self._save_all()
        except StorageError as error:  # one that no waiting mends
            logger.error("%s", error)
            self.published.fault = str(error)
            self._on_failure()
        except Exception:
            logger.exception("the engine failed and stops")
            self.published.fault = "the engine failed; see the log"
            self._on_failure()
        finally:
            self.commands.close()
            self.publishing.close()

    def _is_quiet(self) -> bool:
        """Wait for a message; return True if there is nothing to do after that."""
        self._ingest.listen(POLL_MS)
        is_asked = self.commands.are_waiting or self.publishing.are_waiting
        has_work = self._ingest.has_waiting or is_asked or self._new_rules.are_given
        return not has_work and self.clock.now_ns() < self._quiet_until_ns

    def _round(self) -> None:
        try:
            self._do_round()
        except StorageError as error:
            # Found while a run was read: of the round nothing is folded or acknowledged yet.
            if error.fault is not StorageFault.DAMAGED or self._is_ahead or self._recovery.is_done:
                raise
            self._begin_anew(error)

    def _do_round(self) -> None:
        is_idle = self._delivery.is_done and not self.publishing.are_waiting
        has_more = self._housekeeping.to_tick or self._intake.waiting
        wait_ms = POLL_MS if is_idle and not has_more else BUSY_POLL_MS
        if self._quiet_until_ns:
            if self._is_quiet():
                return
            wait_ms = 0  # it has waited
            self._quiet_until_ns = 0
        self._store.check()
        batch = Batch()
        if self._recover(batch) or not self._recovery.is_done:
            wait_ms = 0
        self._new_rules.add(self.clock.now_ns(), batch)
        began_s = time.perf_counter()
        waited = self._intake.next_round(self.clock.now_ns(), batch)
        self._work.share(waited, time.perf_counter() - began_s)
        began_s = 0.0
        for message in self._ingest.receive(wait_ms, self._work.work_s):
            began_s = began_s or time.perf_counter()
            self._accept(message, batch)
        now_ns = self.clock.now_ns()
        self._intake.ask_again(now_ns, batch)
        self._intake.serve_waiting(now_ns, batch)
        self._housekeeping.wake(now_ns, batch)
        if self._housekeeping.add(now_ns, batch):
            self._run_log.check_rules()
            self._memory.report()
            self._intake.free_credit(now_ns, batch)
        self.commands.decide(self._state, now_ns, batch)
        fold_began_s = time.perf_counter()
        changes = self._fold(batch.by_run())
        self._housekeeping.pace(time.perf_counter() - fold_began_s)
        self._ingest.listen()
        saves = self._checkpointer.due(self.clock.now_ns(), self._state)
        is_changed = self.curves.is_changed or self._transaction.has_unsaved_silences
        has_rows = bool(batch.lines or saves or is_changed)
        if has_rows and not self._commit(batch.lines, changes, saves):
            return
        self._acknowledge(batch)
        if began_s:
            self.metrics.lag.observe(time.perf_counter() - began_s)
        self._tell(changes)
        self._ingest.listen()
        self.publishing.publish()
        self.commands.answer(self._state)
        self._show()
        is_done = self._maintain() and not self.publishing.are_waiting
        has_more = self._housekeeping.to_tick or self._intake.waiting
        if is_done and not (has_rows or began_s or has_more):
            self._quiet_until_ns = self._housekeeping.due_ns

    def _recover(self, batch: Batch) -> bool:
        """Bring runs into memory; return whether a reader waits for one."""
        self._recovery.run_slice(batch)
        wanted = self.publishing.find_wanted()
        for name in wanted:
            self._recovery.ensure(name, batch)
        return bool(wanted)

    def _begin_anew(self, error: StorageError) -> None:
        """Begin as a start does, with what can be read of a damaged store."""
        self.publishing.close()
        self._store.reset(error)
        self.boot_id = os.urandom(BOOT_ID_BYTES)  # clients say HELLO, and what they have still
        self._connect_parts()

    def _accept(self, message: IngestMessage, batch: Batch) -> None:
        now_ns = self.clock.now_ns()
        self._housekeeping.wake(now_ns, batch)
        self._intake.accept(message, now_ns, batch)
        self._work.add(message)

    def _fold(self, entries_of: Mapping[str, Sequence[Entry]]) -> list[AlertChange]:
        """Apply entries to the state; return the changes of alerts.

        Nobody sees the state before `_commit`. If the process dies in between, the clients send
        the records again.
        """
        changes: list[AlertChange] = []
        for name, entries in entries_of.items():
            self._is_ahead = True
            began_s = time.perf_counter()
            first = self._store.log.last(name) + 1
            alerts = self._applier.apply_all(name, entries, first)
            run = self._state.runs.get(name)
            if run is not None and run.has_due:
                self._housekeeping.hurry(name)
            changes += map(AlertChange.of, alerts)
            self._run_log.note(name, entries)
            self._work.apply(entries, time.perf_counter() - began_s)
        for session in self._applier.forgotten:
            self._intake.forget(session)
        self._applier.forgotten.clear()
        return changes

    def _commit(
        self, lines: Sequence[LogEntry], changes: Sequence[AlertChange], saves: Sequence[RunSave]
    ) -> bool:
        """Commit all of a round; return False if stopped before."""
        began_s = time.perf_counter()
        with self.metrics.log_write.time():
            is_done = self._transaction.commit(lines, [change.event for change in changes], saves)
        self._work.write(time.perf_counter() - began_s)
        self._is_ahead = self._is_ahead and not is_done
        return is_done

    def _show(self) -> None:
        """Build views, also for those who asked in the meantime: all of the round is committed."""
        wanted = self.publishing.find_wanted()
        there = [name for name in wanted if not self._recovery.is_away(name)]
        self.publishing.build(there, self._state.runs.get)

    def _wait_for_store(self, seconds: float, stopping: threading.Event) -> None:
        """Read the port until the next attempt to write, and show readers what is committed."""
        self._ingest.drain(seconds, stopping)
        self.publishing.build(self.publishing.find_wanted(), self._recovery.read_committed)

    def _maintain(self) -> bool:
        """Do a slice of what can wait; return True if nothing is left of it."""
        now_ns = self.clock.now_ns()
        # What may be trimmed is known once all runs are in memory.
        is_trimmed = self._recovery.is_done and self._checkpointer.trim(now_ns, self._state)
        is_kept = self.curves.run_slice(self.clock.now_ns())
        is_deleted = self.deletions.run_slice(self.published.cursor)
        is_saved = self._checkpointer.is_done and self._delivery.is_done
        return is_trimmed and is_kept and is_deleted and is_saved

    def _save_all(self) -> None:
        """Save what there is time for, so that the next start is quick."""
        deadline_ns = self.clock.now_ns() + FINISH_NS
        while not self._is_ahead and self.clock.now_ns() < deadline_ns:
            saves = self._checkpointer.due(self.clock.now_ns(), self._state, at_end=True)
            if not saves or not self._commit([], [], saves):
                return

    def _tell(self, changes: Sequence[AlertChange]) -> None:
        """Tell ranks, streams and the process's own log what is committed."""
        self._run_log.write()
        if changes:
            self._on_alerts()
            # A run may have left memory later in the same batch.
            self._delivery.add(change for change in changes if change.alert.run in self._state.runs)
        self._delivery.run_slice()

    def _acknowledge(self, batch: Batch) -> None:
        now_s = self.clock.now_ns() / 1e9
        answers = batch.acknowledgements(
            self._tracker, self._hello, self._ingest.credit, self._state.every_of, now_s
        )
        for peer, session, record in answers:
            self._ingest.reply(peer, session, record)
