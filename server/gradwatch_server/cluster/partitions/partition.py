"""One partition that a node owns: a queue, and an engine with its app once there is work for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Final

from fastapi import FastAPI

from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.app import ApiParts, make_app
from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.clock import Clock
from gradwatch_server.cluster.messages.inbox import ClusterInbox, Postman
from gradwatch_server.cluster.messages.parcels import Parcel
from gradwatch_server.cluster.messages.turns import Turns
from gradwatch_server.cluster.partitions.storage import PartitionStore, Storage
from gradwatch_server.cluster.partitions.takeovers import Takeovers
from gradwatch_server.cluster.unavailable import tell_storage_errors
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.engine.engine import Engine
from gradwatch_server.engine.metrics import Timings
from gradwatch_server.errors import GradwatchError
from gradwatch_server.settings import Settings, retention_of
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_server.storage.store import StorageError, StorageFault

logger = logging.getLogger(__name__)

FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 5.0
"""Pause before an engine that failed is started again; it doubles up to the second."""

LOG_SHARE: Final = 0.75
"""What of the stream's room all logs together are trimmed to: what is deleted goes a little later,
and leases are to find room whatever the log takes."""

MAX_WAITING_ALERT_BYTES: Final = 8 << 20
"""Alerts of a partition that may wait for a ledger that is away; then its records wait as well."""

POLL_MS: Final = 500
"""How long a round of an engine waits for a message: a node has many engines, which cost idle."""


def retention_in(settings: Settings, partitions: int) -> RetentionPolicy:
    """Return what is kept of each partition: all logs together fit into the stream."""
    policy, most = retention_of(settings), settings.cluster_log_max_bytes
    if most is None:
        return policy
    share = round(most * LOG_SHARE / partitions)
    return replace(policy, log_max_bytes=min(policy.log_max_bytes, share))


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all partitions of a node share.

    Args:
        settings: What is set.
        retention: What is kept of each.
        storage: Where they are kept.
        postman: Makes what takes answers to gateways.
        alert_stream: Follows the alert events of all.
        parts: What their apps use.
        endpoint: Where clients attach to the node.
        http_url: Where its HTTP is.
        timings: Where engines note how long they take.
        takeovers: Counts those that began to run.
        on_alerts: Called after alerts were stored.
        turns: Those of its engines.
        pool: Runs what takes long.
        stop_pool: Runs the end of partitions, which is not to wait behind all that are opened.
    """

    settings: Settings
    retention: RetentionPolicy
    storage: Storage
    postman: Callable[[], Postman]
    alert_stream: AlertStream
    parts: ApiParts
    endpoint: str
    http_url: str
    timings: Timings
    takeovers: Takeovers
    on_alerts: Callable[[], None]
    turns: Turns
    pool: Executor
    stop_pool: Executor


@dataclass(frozen=True, slots=True)
class Running:
    """What runs of a partition.

    Args:
        store: Where it is kept.
        engine: What evaluates it.
        app: What answers about it.
    """

    store: PartitionStore
    engine: Engine
    app: FastAPI


class Partition:
    """A partition at one epoch. All methods are for any thread, and none of them waits."""

    def __init__(self, number: int, epoch: int, rules: Rules, around: Surroundings) -> None:
        """Begin without an engine.

        Args:
            number: The partition.
            epoch: That of its acquisition.
            rules: Those in force when the engine starts.
            around: What it shares with others.
        """
        self.number, self.epoch = number, epoch
        self.acquired_s = time.monotonic()
        self._begun_s: float | None = None  # until it runs
        self.running: Running | None = None
        self.fault: str | None = None
        """Why it has no engine although it needs one."""
        self.needs_engine = self.is_empty = False
        """Whether there is something for one, and whether it is known that there is nothing."""
        self.outranked: int | None = None
        """The epoch of another owner that keeps it from being started."""
        self._rules = rules
        self._around = around
        self._budget_use = BudgetUse(around.settings.budgets)
        self._inbox = ClusterInbox(
            around.endpoint, self._budget_use, around.postman(), around.turns
        )
        self._is_ending = False
        self._has_failed = False
        self._turn_lock = threading.Lock()
        self._is_queued = self._is_working = self._is_asked = False
        self._retry_s, self._retry_at_s = FIRST_RETRY_S, 0.0
        self._ended = threading.Event()

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs any more."""
        return self._ended.is_set()

    @property
    def awaits_engine(self) -> bool:
        """Whether it has no engine, and may have runs."""
        return self.running is None and (self.needs_engine or not self.is_empty)

    def put(self, node: str, parcels: Sequence[Parcel]) -> None:
        """Take messages that came by the gateway of a node."""
        self._inbox.put(node, parcels)
        if not self.needs_engine and any(parcel.frames for parcel in parcels):
            self.begin()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the messages that wait for its engine."""
        return self._inbox.waiting_bytes

    def begin(self, since_s: float | None = None) -> None:
        """Start the engine: there is something for it; *since_s* by the monotonic clock."""
        if not self.needs_engine:
            self._begun_s = time.monotonic() if since_s is None else since_s
        self.needs_engine = True
        self._later()

    def set_rules(self, rules: Rules) -> None:
        """Put other rules in force."""
        self._rules = rules
        if (running := self.running) is not None:
            running.engine.set_rules(rules)

    def end(self) -> None:
        """Save, and stop the engine."""
        self._is_ending = True
        self._around.stop_pool.submit(self._work)

    def look(self) -> None:
        """Start an engine again that failed, if it is time."""
        is_due = time.monotonic() >= self._retry_at_s
        if self.needs_engine and self.running is None and is_due and not self._is_ending:
            self._later()

    def _later(self) -> None:
        """Have it looked soon what is to be done: once, however often this is asked for."""
        with self._turn_lock:
            if self._is_queued:
                return
            self._is_queued = True
        self._around.pool.submit(self._work_queued)

    def _fail(self) -> None:
        """Note, in the engine's thread, that it ends by itself."""
        self._has_failed = True
        self._later()

    def _work_queued(self) -> None:
        with self._turn_lock:
            self._is_queued = False
        self._work()

    def _work(self) -> None:
        """Do what is to be done, or leave it to the thread that is at it: no other waits here."""
        with self._turn_lock:
            self._is_asked = True
            if self._is_working:
                return
            self._is_working = True
        while self._goes_on():
            try:
                self._advance()
            except Exception:
                logger.exception("partition %d", self.number)

    def _goes_on(self) -> bool:
        """Tell whether something was asked for since it was looked last; if not, end the turn."""
        with self._turn_lock:
            self._is_working, self._is_asked = self._is_asked, False
            return self._is_working

    def _advance(self) -> None:
        if self._ended.is_set():
            return
        if self._has_failed or self._is_ending:
            self._stop()
        if self._is_ending:
            self._inbox.close()
            self._ended.set()
        elif self.needs_engine and self.running is None:
            self._start()

    def _start(self) -> None:
        if time.monotonic() < self._retry_at_s:
            return
        try:
            self.running = self._run()
        except GradwatchError as error:
            self._note_fault(str(error))
            if isinstance(error, StorageError) and error.fault is StorageFault.GONE:
                self.outranked = error.epoch  # the membership ends it
            return
        self.fault, self._retry_s = None, FIRST_RETRY_S
        if self._begun_s is not None:
            self._around.takeovers.note(time.monotonic() - self._begun_s)
            self._begun_s = None

    def _run(self) -> Running:
        around, settings = self._around, self._around.settings
        store = around.storage.open(self.number, self.epoch)
        try:
            engine = Engine(
                store,
                self._inbox,
                self._rules,
                clock=Clock(),
                window_steps=settings.window_steps,
                session_timeout_s=settings.session_timeout_s,
                on_alerts=around.on_alerts,
                on_failure=self._fail,
                retention=around.retention,
                budget_use=self._budget_use,
                http_url=around.http_url,
                timings=around.timings,
                max_waiting_alert_bytes=MAX_WAITING_ALERT_BYTES,
                poll_ms=POLL_MS,
            )
            app = make_app(engine, store.alert_events, around.alert_stream, around.parts)
            tell_storage_errors(app)
        except BaseException:
            store.close()
            raise
        engine.start()
        return Running(store, engine, app)

    def _stop(self) -> None:
        running, self.running = self.running, None
        if running is None:
            return
        running.engine.stop()
        running.store.close()
        if self._has_failed:
            self._has_failed = False
            self._note_fault(running.engine.published.fault or "the engine failed")

    def _note_fault(self, why: str) -> None:
        self.fault = why
        self._retry_at_s = time.monotonic() + self._retry_s
        self._retry_s = min(2 * self._retry_s, MAX_RETRY_S)
        logger.error("partition %d has no engine just now: %s", self.number, why)
