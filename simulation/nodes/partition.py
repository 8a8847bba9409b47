"""The engine of one partition on one node, from the moment when it is taken over."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.cluster.partitions.partition import MAX_WAITING_ALERT_BYTES
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.errors import GradwatchError
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_server.storage.store import StorageError, StorageFault
from simulation.aggregator import WINDOW_STEPS
from simulation.invariants import Violation, require
from simulation.nodes.inbox import PartitionInbox
from simulation.nodes.ledger import LedgerSession
from simulation.nodes.names import NAMES
from simulation.nodes.store import PartitionStore
from simulation.nodes.stream_client import SimulatedClient, SimulatedStream
from simulation.nodes.task import Task
from simulation.nodes.waiter import WaitedEvent, Waiter

if TYPE_CHECKING:
    from gradwatch_server.engine.engine import Engine
    from simulation.nodes.node import Node


class PartitionEngine:
    """One owner of a partition."""

    def __init__(self, node: Node, partition: int, epoch: int) -> None:
        cluster = node.cluster
        self.partition, self.epoch = partition, epoch
        self.engine: Engine | None = None
        self.is_between_batches = False
        self._node = node
        self._cluster = cluster
        self._task = Task(self._run)
        self._stop = WaitedEvent(self._task.wait, self._now_s)
        waiter = Waiter(self._pass_by, self._point)
        self.inbox = PartitionInbox(node, waiter, cluster.checkers[partition].records)
        self._waiter = waiter

    @property
    def name(self) -> str:
        """What the trace calls it."""
        return f"partition {self.partition} at {self._node.id} epoch {self.epoch}"

    @property
    def is_over(self) -> bool:
        """Whether it does nothing more."""
        return self._task.is_over

    def step(self) -> None:
        """Let it go on until it waits."""
        self._task.resume()

    def stop(self) -> None:
        """Have it end after the batch in hand."""
        self._stop.set()

    def kill(self) -> None:
        """End it where it is."""
        self._task.kill()

    @property
    def is_idle(self) -> bool:
        """Whether it serves, is not in the midst of anything, and no alert waits for the ledger."""
        engine = self.engine
        if engine is None or self.is_over or not self.is_between_batches:
            return False
        return engine._alerts.is_stored

    def _run(self) -> None:
        try:
            engine = self._open()
        except GradwatchError as error:
            self._note("does not start:", error)
            if isinstance(error, StorageError) and error.fault is StorageFault.GONE:
                self._node.note_outranked(self.partition, error.epoch)
            self._check_fenced(error)
            return
        self.engine = engine
        self._cluster.num_starts += 1
        self._note("starts")
        engine.run()
        self.engine = None
        self._note("ends", engine.published.fault or "")

    def _fail(self) -> None:
        """Look at what the engine fails with, in the midst of that."""
        error = sys.exc_info()[1]
        if isinstance(error, Violation):
            raise error
        if not isinstance(error, StorageError):
            raise Violation(f"the engine fails at nothing: {error!r}") from error
        self._check_fenced(error)

    def _check_fenced(self, error: BaseException) -> None:
        """Check that nobody but an owner of a later epoch makes one end."""
        cause = error if isinstance(error, StorageError) else error.__cause__
        if isinstance(cause, StorageError) and cause.fault is StorageFault.GONE:
            self._cluster.num_refused += 1
            is_followed = self._cluster.owners.is_followed(
                self.partition, self.epoch, self._node.id
            )
            promise = "an owner ends only for one of a later epoch"
            require(is_followed, promise, self.name, error)

    def _open(self) -> Engine:
        node, cluster = self._node, self._cluster
        checker = cluster.checkers[self.partition]
        clock, job = cluster.clock.boot(node.skew_s), cluster.scenario.job
        session = LedgerSession(
            cluster.ledger,
            node.number,
            self.partition,
            self.epoch,
            node.id,
            cluster.faults,
            self._point,
            lambda: checker.ledger_written(self.epoch, node.id),
        )
        client = SimulatedClient(
            cluster.stream, node.number, node.id, cluster.faults, cluster.clock, self._waiter
        )
        stream = SimulatedStream(client, self._waiter)
        log = cluster.parts.log(stream, NAMES.namespace, self.partition, self.epoch)
        return cluster.parts.engine(
            PartitionStore(log, session, clock, self._wait_a_turn),
            self.inbox,
            Rules(),
            clock=clock,
            window_steps=WINDOW_STEPS,
            session_timeout_s=job.session_timeout_s,
            on_alerts=lambda: None,
            on_failure=self._fail,
            retention=RetentionPolicy(
                log_max_age_s=job.log_age_s,
                checkpoint_s=job.checkpoint_s,
            ),
            budget_use=BudgetUse(),
            boot_id=cluster.random.randbytes(16),
            stopping=self._stop,
            max_waiting_alert_bytes=MAX_WAITING_ALERT_BYTES,
        )

    def _wait_a_turn(self) -> None:
        self.is_between_batches = True
        self._task.wait()
        self.is_between_batches = False

    # What it is surrounded by.

    def _now_s(self) -> float:
        return self._cluster.clock.now_s

    def _point(self, where: str) -> None:
        """Pass a point at which the node may be killed or paused."""
        if self._node.befalls(where):
            self._task.wait()

    def _pass_by(self, seconds: float) -> None:
        """Let the others go on for a while."""
        until_s = self._now_s() + seconds
        while self._now_s() < until_s:
            self._task.wait()

    def _note(self, *what: object) -> None:
        self._cluster.note(self.name, *what)
