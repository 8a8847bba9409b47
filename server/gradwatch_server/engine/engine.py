"""The engine: one thread that owns the store and the state.

Each round: take in a batch, fold it into the state, commit its records and alerts in one
transaction, then acknowledge, deliver the alerts, and publish immutable snapshots for the readers.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from gradwatch_server.budgets import BudgetUse
from gradwatch_server.clock import Clock
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import RulesSet
from gradwatch_server.core.sequence import SequenceTracker
from gradwatch_server.core.state import State
from gradwatch_server.engine.alert_delivery import AlertChange, AlertDelivery
from gradwatch_server.engine.batch import Batch
from gradwatch_server.engine.commands import Commands
from gradwatch_server.engine.curve_recorder import CurveRecorder
from gradwatch_server.engine.housekeeping import Housekeeping
from gradwatch_server.engine.intake import Intake
from gradwatch_server.engine.memory import RunMemory
from gradwatch_server.engine.metrics import EngineMetrics
from gradwatch_server.engine.published import PublishedState
from gradwatch_server.engine.recovery import recover, write_silences
from gradwatch_server.engine.run_commands import Deletions
from gradwatch_server.engine.run_log import RunLog
from gradwatch_server.engine.work_meter import WorkMeter
from gradwatch_server.ingest.inbox import PEER_SHARE, Inbox
from gradwatch_server.ingest.message import Message
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_server.storage.rows import Line, RunSave, StorageError, StorageFault
from gradwatch_server.storage.store import Store
from gradwatch_wire import Welcome
from gradwatch_wire.limits import BOOT_ID_BYTES

RETRY_S: Final = 0.5

FINISH_NS: Final = 1_000_000_000
"""Time for saving at the end; what is not saved then is applied at the next start."""

T = TypeVar("T")

logger = logging.getLogger(__name__)

POLL_MS: Final = 50

BUSY_POLL_MS: Final = 5
"""Likewise while there are alerts to be told."""


class NewRules:
    """The newest that were given."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._given: deque[Rules] = deque(maxlen=1)  # and not in the log yet

    def give(self, rules: Rules) -> None:
        """Put rules in force with the next round; any thread may ask for it."""
        self._given.append(rules)

    @property
    def are_given(self) -> bool:
        """True while new rules wait for a round."""
        return bool(self._given)

    def add(self, now_ns: int, batch: Batch) -> None:
        """Add the entries that put them in force, if they are other ones."""
        if not self._given:
            return
        rules = self._given.popleft()
        if rules == self._state.rules:
            logger.info("the rules are those in force already")
            return
        differing = ", ".join(rules.differing(self._state.rules))
        logger.info("rules put in force that differ in %s", differing)
        self._state.rules = rules
        body = RulesSet(rules.model_dump(mode="json"))
        for name in self._state.runs:
            batch.add(name, now_ns, body)


def retry_write(
    write: Callable[[], T],
    published: PublishedState,
    stopping: threading.Event,
    on_fault: Callable[[], None],
    wait: Callable[[float, threading.Event], object],
) -> T | None:
    """Write, and try again while the store cannot; return its result, None if stopped before.

    Args:
        write: What is to be done.
        published: Where the fault is shown while it lasts.
        stopping: Ends the attempts.
        on_fault: Called once when the first attempt failed.
        wait: Called between attempts, with the seconds until the next and what ends the wait.

    Raises:
        StorageError: If the store is gone, which no waiting mends.
    """
    while True:
        try:
            written = write()
        except StorageError as error:
            if error.fault is StorageFault.GONE:
                raise
            if published.fault is None:
                logger.error("the log cannot be written, nothing is acknowledged: %s", error)
                on_fault()
            published.fault = f"the log cannot be written: {error}"
            wait(RETRY_S, stopping)
            if stopping.is_set():
                return None
        else:
            if published.fault is not None:
                logger.warning("the log can be written again")
                published.fault = None
            return written


class Engine(threading.Thread):
    """Runs until `stop`."""

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
        """Read what the store has.

        Args:
            store: What is kept; the engine is the only one that writes it.
            ingest: Where messages come from and answers go.
            rules: The rules in force from here on.
            clock: Gives the time of every entry.
            window_steps: Frames that a run's window holds.
            session_timeout_s: Silence after which a session is taken for lost, seconds.
            on_alerts: Called from the engine's thread after alerts were stored.
            on_failure: Called from it if it fails and ends.
            retention: What is kept, and for how long.
            budget_use: Budgets of peers, and their use so far.
            boot_id: Tells this start from others; random without.
            http_url: Where HTTP is answered, which clients are told.
            stopping: What ends the loop when it is set.

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
        limits = self.budget_use.limits
        self._hello = Welcome(
            boot_id=self.boot_id,
            http=http_url,
            max_in_flight_bytes=min(limits.in_flight_bytes, limits.queue_bytes // PEER_SHARE),
        )
        self.refused: Mapping[str, int] = ingest.refused
        self.ingest_endpoint = ingest.endpoint
        self._store = store
        self.records = store.records
        self.deletions = Deletions(store)
        self._ingest = ingest
        self._on_alerts = on_alerts
        self._on_failure = on_failure
        self._retention = retention or RetentionPolicy()
        self.curves = CurveRecorder(store.curves, self._retention.curves_max_bytes, clock)
        self._stopping = stopping or threading.Event()
        self._recover(rules, window_steps)
        self._connect_parts(session_timeout_s)

    def _recover(self, rules: Rules, window_steps: int) -> None:
        self._applier = recover(
            self._store,
            rules,
            self.budget_use.limits.logged(),
            self.published,
            clock=self.clock,
            retention=self._retention,
            window_steps=window_steps,
            recorder=self.curves,
        )
        self._state = self._applier.state
        self._checkpointer = self._applier.checkpointer

    def _connect_parts(self, session_timeout_s: float) -> None:
        """Make the parts that work on the state, once it is there."""
        self._new_rules = NewRules(self._state)
        self._tracker = SequenceTracker({s.id: s.acked for s in self._state.sessions.values()})
        self._memory = RunMemory(self._state, self.budget_use)
        self._housekeeping = Housekeeping(
            self._state,
            self.published,
            self.clock.now_ns(),
            session_timeout_s=session_timeout_s,
            runs_max_age_s=self._retention.runs_max_age_s,
        )
        self._intake = Intake(
            self._ingest,
            self._state,
            self._tracker,
            self.published,
            self.metrics,
            self.boot_id,
            self._housekeeping.beat,
            self._memory,
            self.budget_use,
            self._store.state,
        )
        self._applier.on_changed = self._memory.note_changed
        peers = self._intake.peers
        self._delivery = AlertDelivery(self._state, peers, self._ingest)
        self._silences_version = self._state.silences.version  # of what is committed
        self._is_ahead = False  # whether the state has entries that are not committed
        self._quiet_until_ns = 0  # before it, only messages and commands need a round
        self._work = WorkMeter(self._ingest, peers)
        self._applier.on_forgotten = self._intake.forget
        self._run_log = RunLog(self._state, self.budget_use.limits.log_lines_per_min)
        self._applier.on_entry = self._run_log.note

    def set_rules(self, rules: Rules) -> None:
        """Put other rules in force with the next round; any thread may ask for it."""
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
            self._publish()

    def _is_quiet(self) -> bool:
        """Wait for a message; return True if there is nothing to do after that."""
        self._ingest.listen(POLL_MS)
        asked = self._ingest.has_waiting or self.commands.are_waiting or self._new_rules.are_given
        return not asked and self.clock.now_ns() < self._quiet_until_ns

    def _round(self) -> None:
        wait_ms = POLL_MS if self._delivery.is_done else BUSY_POLL_MS
        if self._quiet_until_ns:
            if self._is_quiet():
                return
            wait_ms = 0  # it has waited
            self._quiet_until_ns = 0
        self._store.check()
        batch = Batch()
        self._new_rules.add(self.clock.now_ns(), batch)
        began_s = time.perf_counter()
        waited = self._intake.next_round(self.clock.now_ns(), batch)
        self._work.share(waited, time.perf_counter() - began_s)
        began_s = 0.0
        for message in self._ingest.receive(wait_ms, self._work.work_s):
            began_s = began_s or time.perf_counter()
            self._take(message, batch)
        now_ns = self.clock.now_ns()
        self._intake.ask_again(now_ns, batch)
        self._housekeeping.wake(now_ns, batch)
        self._housekeeping.add(now_ns, batch)
        self.commands.take(self._state, now_ns, batch)
        changes = self._fold(batch.lines)
        self._ingest.listen()
        saves = self._checkpointer.due(self.clock.now_ns(), self._state)
        if (batch.lines or saves) and not self._commit(batch.lines, changes, saves):
            return
        self._acknowledge(batch)
        if began_s:
            self.metrics.lag.observe(time.perf_counter() - began_s)
        self._tell(changes)
        self._ingest.listen()
        self.commands.answer(self._state)
        publisher = self._applier.publisher
        publisher.publish(self._state, now_ns)
        is_trimmed = self._checkpointer.trim(self.clock.now_ns(), self._state)
        is_kept = self.curves.work(self.clock.now_ns())
        is_deleted = self.deletions.work(self.published.cursor)
        is_told = self._delivery.is_done and publisher.is_done
        is_done = self._checkpointer.is_done and is_trimmed and is_kept and is_deleted and is_told
        if is_done and not (batch.lines or saves or began_s):
            self._quiet_until_ns = self._housekeeping.due_ns

    def _take(self, message: Message, batch: Batch) -> None:
        now_ns = self.clock.now_ns()
        self._housekeeping.wake(now_ns, batch)
        self._intake.take(message, now_ns, batch)
        self._work.take(message)

    def _fold(self, lines: Sequence[Line]) -> list[AlertChange]:
        """Apply entries to the state; return the changes of alerts.

        Nobody sees the state before `_commit`. If the process dies in between, the clients send
        the records again.
        """
        changes: list[AlertChange] = []
        last: dict[str, int] = {}
        for line in lines:
            self._is_ahead = True
            began_s = time.perf_counter()
            number = last[line.run] = last.get(line.run, self._store.log.last(line.run)) + 1
            alerts = self._applier.apply(line.run, line.entry, number)
            changes += map(AlertChange.of, alerts)
            self._work.apply(line.entry, time.perf_counter() - began_s)
        return changes

    def _commit(
        self, lines: Sequence[Line], changes: Sequence[AlertChange], saves: Sequence[RunSave]
    ) -> bool:
        """Write entries, alert events, curves and checkpoints in one transaction.

        Return False if stopped before.
        """
        events = [change.event for change in changes]
        self.curves.save_open(save.run for save in saves)

        def write_with(checkpoints: Sequence[RunSave]) -> int:
            with self._store.transaction():
                self._store.log.append(lines)
                self.curves.write()
                self._checkpointer.write_forgotten(self.clock.now_ns())
                self._store.state.save({}, checkpoints)
                if self._state.silences.version != self._silences_version:
                    write_silences(self._store, self._state.silences)
                return self._store.alert_events.add(events) if events else self.published.cursor

        def write() -> int:
            nonlocal saves
            try:
                return write_with(saves)
            except StorageError as error:
                if not saves or error.fault is StorageFault.GONE:
                    raise
                self._checkpointer.put_off(self.clock.now_ns(), error)
            saves = ()  # they can wait, and must not keep records from being written
            return write_with(saves)

        began_s = time.perf_counter()
        with self.metrics.log_write.time():
            cursor = retry_write(
                write, self.published, self._stopping, self._publish, self._ingest.drain
            )
        self._work.write(time.perf_counter() - began_s)
        if cursor is None:
            return False
        self._is_ahead, self.published.cursor = False, cursor
        self._silences_version = self._state.silences.version
        self._checkpointer.committed()
        self._checkpointer.saved(saves, self._state)
        self.curves.committed()
        return True

    def _save_all(self) -> None:
        """Save what there is time for, so that the next start is quick."""
        deadline_ns = self.clock.now_ns() + FINISH_NS
        while not self._is_ahead and self.clock.now_ns() < deadline_ns:
            saves = self._checkpointer.due(self.clock.now_ns(), self._state, at_end=True)
            if not saves or not self._commit([], [], saves):
                return

    def _tell(self, changes: Sequence[AlertChange]) -> None:
        """Tell readers, ranks, streams and the process's own log what is committed."""
        self._run_log.write()
        if changes:
            self._on_alerts()
            # A run may have left memory later in the same batch.
            self._delivery.tell(own for own in changes if own.alert.run in self._state.runs)
        self._delivery.work()

    def _acknowledge(self, batch: Batch) -> None:
        answers = batch.acknowledgements(self._tracker, self._hello)
        for peer, session, record in answers:
            self._ingest.reply(peer, session, record)

    def _publish(self) -> None:
        """Publish at once, unless the state has what is not committed."""
        if not self._is_ahead:
            self._applier.publisher.publish(self._state, self.clock.now_ns(), force=True)
