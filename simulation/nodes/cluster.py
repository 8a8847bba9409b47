"""Nodes, what they share, and the runs that they watch, moved on tick by tick from one seed."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from gradwatch_server.cluster.ownership.absences import RETURN_S
from gradwatch_server.cluster.ownership.plan import partition_of
from gradwatch_server.cluster.partitions.partition import MAX_RETRY_S
from gradwatch_server.core.frames.assembler import LATENESS_NS
from gradwatch_server.engine.engine import Engine
from gradwatch_server.ingest.inbox import BATCH_MESSAGES
from gradwatch_server.storage.jetstream.log import JetStreamLog
from gradwatch_server.storage.store import AlertEvent
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session
from simulation.clock import Clock
from simulation.faults import FaultInjector
from simulation.invariants import Violation, require
from simulation.job import Job
from simulation.network import Network
from simulation.nodes.bus import Bus
from simulation.nodes.checker import PartitionChecker
from simulation.nodes.faults import NodeFaults
from simulation.nodes.key_value import CALL_S, Bucket
from simulation.nodes.ledger import Ledger
from simulation.nodes.names import partition_in
from simulation.nodes.node import Node
from simulation.nodes.owners import OwnerHistory
from simulation.nodes.reader import Reader
from simulation.nodes.scenario import NodesScenario
from simulation.nodes.socket import RovingSocket
from simulation.nodes.stream import ReplicatedStream, Written
from simulation.replay import check_store
from simulation.scenario import SECOND_NS

TRACE_LINES: Final = 80
MAX_TICKS: Final = 400
HEALING_S: Final = 240.0
CHECK_TICKS: Final = 64
"""How often an engine is compared with a replay of its log."""

LOOKS_S: Final = 2 * CALL_S + 1.5
"""How long a look at the owner records takes at most: two calls that get no answer, and some ticks.
"""


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What is put together; a test plants a bug by a subclass."""

    engine: type[Engine] = Engine
    session: type[Session[Outbox]] = Session
    log: type[JetStreamLog] = JetStreamLog


class NodeCluster:
    """One run of a simulated cluster of nodes."""

    def __init__(self, scenario: NodesScenario, random: Random, parts: NodeParts) -> None:
        self.scenario = scenario
        self.random = random
        self.batch = scenario.job.batch
        self.parts = parts
        self.clock = Clock()
        self.trace: deque[tuple[float, tuple[object, ...]]] = deque(maxlen=TRACE_LINES)
        self.faults = NodeFaults(scenario, random, self.clock, self.note)
        self.num_starts = self.num_epochs = self.num_refused = 0
        self.checkers = [PartitionChecker(p) for p in range(scenario.partitions)]
        self.stream = ReplicatedStream(self.clock, self._written)
        self.ledger = Ledger(self.clock, lambda p, epoch: self.checkers[p].taken_over(epoch))
        self.nodes_bucket = Bucket("nodes", self.clock, scenario.lease_s)
        self.owners_bucket = Bucket("owners", self.clock)
        self.owners = OwnerHistory(self.owners_bucket, self.faults, self.note)
        self.bus = Bus(self.clock, self.faults)
        self.reader = Reader()
        self.nodes = [self._node(number) for number in range(scenario.nodes)]
        self._job_faults = FaultInjector(scenario.job, random, self.clock, self.note)
        self.jobs = [self._job(f"gpt-{number}") for number in range(scenario.runs)]
        self._num_ticks = 0
        self._both_answer_s: dict[int, float] = defaultdict(float)  # by partition

    def _node(self, number: int) -> Node:
        job = self.scenario.job
        skew_s = (self.random.random() * 2 - 1) * self.scenario.skew_s
        network = Network(self.random, hwm=job.hwm, delay_s=job.delay_s, duplicate=job.duplicate)
        return Node(self, number, skew_s, network)

    def _job(self, run: str) -> Job:
        checker = self.checkers[partition_of(run, self.scenario.partitions)]
        return Job(
            run,
            self.scenario.job,
            self.random,
            self.clock,
            checker.records,
            self._job_faults,
            self.note,
            self.parts.session,
            lambda: RovingSocket(self.nodes, self.faults),
        )

    def note(self, *what: object) -> None:
        """Write a line of the trace."""
        self.trace.append((self.clock.now_s, what))

    def _written(self, written: Written) -> None:
        self.checkers[partition_in(written.message.subject)].written(written)

    def live_nodes(self) -> set[str]:
        """Return the ids of the nodes that have a lease."""
        return set(self.nodes_bucket.entries())

    def alert_events(self, partition: int) -> list[AlertEvent]:
        """Return what the ledger has of the runs of a partition."""
        events = self.reader.events
        return [e for e in events if partition_of(e.run, self.scenario.partitions) == partition]

    # The phases of a run.

    def run(self) -> None:
        """Let faults happen, then end them all, and see whether all promises were kept."""
        try:
            for _ in range(MAX_TICKS):
                if all(job.is_trained for job in self.jobs):
                    break
                self._tick()
            self._heal()
            self._until("all partitions have one owner in the end", self._is_owned, self._bound_s)
            self._until("a living worker delivers everything", self._is_drained)
            for worker in (worker for job in self.jobs for worker in job.living):
                worker.close()
            self._until("a worker that closes is let go", self._is_left)
            for job in self.jobs:
                job.replay_orphans()
            self._until("what was left in spill files is sent", self._is_sent)
            self._until("what arrived is taken in", self._is_taken_in)
            lateness_s = LATENESS_NS / SECOND_NS
            for _ in range(int(self.scenario.job.session_timeout_s + lateness_s) + 4):
                self.clock.pass_time(1.0)
                self._tick()
            self._check_end()
        finally:
            for node in self.nodes:
                node.die()
            self.ledger.close()

    def _is_drained(self) -> bool:
        return all(w.drained for job in self.jobs for w in job.living)

    def _is_left(self) -> bool:
        return not any(job.living for job in self.jobs)

    def _is_sent(self) -> bool:
        return all(job.is_sent(worker) for job in self.jobs for worker in job.workers)

    def _is_taken_in(self) -> bool:
        engines = (own for node in self.nodes for own in node.engines.values())
        return self.bus.is_empty and not any(own.inbox.has_waiting for own in engines)

    @property
    def _bound_s(self) -> float:
        """Within which somebody has each partition: who looks may wait for its owner."""
        return 3 * max(self.scenario.lease_s, RETURN_S) + MAX_RETRY_S + 10.0

    def _is_owned(self) -> bool:
        live = self.live_nodes()
        records = self.owners_bucket.entries()
        for partition, checker in enumerate(self.checkers):
            record = records.get(str(partition))
            holders = [node.id for node in self.nodes if partition in node.owned]
            owner = None if record is None else json.loads(record.value or b"{}").get("node")
            if owner not in live or holders != [owner]:
                return False
            serve = [own for node in self.nodes for own in self._serving(node, partition)]
            if len(serve) != bool(checker.records.entries):
                return False
        return True

    def _serving(self, node: Node, partition: int) -> list[object]:
        engines = [*node.engines.values(), *node.ending]
        return [e for e in engines if e.partition == partition and e.engine is not None]

    def _until(
        self, promise: str, reached: Callable[[], bool], within_s: float = HEALING_S
    ) -> None:
        deadline_s = self.clock.now_s + within_s
        while not reached():
            require(self.clock.now_s < deadline_s, promise, f"{within_s:.0f} s")
            self._tick()

    def _heal(self) -> None:
        self.note("everything heals")
        self.faults.over = self._job_faults.over = True
        self.batch = BATCH_MESSAGES
        for node in self.nodes:
            node.heal()
            node.network.heal()
        for worker in (worker for job in self.jobs for worker in job.workers):
            worker.socket.unreachable_until_s = 0.0

    def _check_end(self) -> None:
        serving = [own for node in self.nodes for own in node.engines.values() if own.engine]
        require(all(own.is_idle for own in serving), "nothing is left to be done in the end")
        self._check()
        for partition, checker in enumerate(self.checkers):
            serving = [own for node in self.nodes for own in node.engines.values()]
            engines = [own.engine for own in serving if own.partition == partition and own.engine]
            if not checker.records.entries:
                continue
            if len(engines) != 1:
                raise Violation(f"one node serves a partition: {partition}, {len(engines)}")
            check_store(engines[0]._store, self.alert_events(partition), checker.records)
            for job in self.jobs:
                if partition_of(job.run, self.scenario.partitions) == partition:
                    job.check_settled(engines[0]._state.sessions)
            for run in engines[0]._state.runs.values():
                require(not run.current.waiting, "every frame is closed in the end", run.name)

    # One tick.

    def _tick(self) -> None:
        before_s = self.clock.now_s
        self.clock.pass_time(self.random.random() * self.scenario.job.tick_s)
        self.faults.strike()
        if self.faults.chance(self.scenario.leave):
            self.random.choice(self.nodes).leave()
        self.owners.lose_records()
        self.stream.pass_time(self.clock.now_s)
        for job in self.jobs:
            job.work(reachable=True)
            job.replay(reachable=True)
        for node in self.random.sample(self.nodes, len(self.nodes)):
            node.network.sweep()
            node.step()
            self._check_lease(node)
        self._check_who_answers(self.clock.now_s - before_s)
        if self.random.random() < 0.2:
            self.reader.poll(self.ledger.alerts)
        for job in self.jobs:
            job.check_accepted()
        self._num_ticks += 1
        if self._num_ticks % CHECK_TICKS == 0:
            self._check()

    def _check_lease(self, node: Node) -> None:
        before, node.had_lease = node.had_lease, node.has_lease()
        if not node.had_lease:
            return
        promise = "a node that takes its lease for valid has it"
        require(node.id in self.live_nodes(), promise, node.id)
        if before or self.scenario.forget:
            return
        promise = "a node that has a lease again has read what others took"
        for partition, epoch in node.owned.items():
            is_followed = self.owners.is_followed(partition, epoch, node.id)
            require(not is_followed, promise, node.id, partition)

    def _check_who_answers(self, seconds: float) -> None:
        """Check that two nodes answer for a partition only until one reads of the other."""
        leases = 5 if self.scenario.forget else 2
        most_s = leases * self.scenario.lease_s + LOOKS_S
        for partition in range(self.scenario.partitions):
            both = [node.id for node in self.nodes if partition in node.owned and node.has_lease()]
            since_s = self._both_answer_s[partition] + seconds if len(both) > 1 else 0.0
            self._both_answer_s[partition] = since_s
            require(since_s < most_s, "one node alone answers for a partition", partition, both)

    def _check(self) -> None:
        self.reader.poll(self.ledger.alerts)
        for checker in self.checkers:
            for account in checker.records.accounts.values():
                account.hears_old = True
            checker.records.check_workers()
            serving = (own for node in self.nodes for own in node.engines.values())
            idle = [own for own in serving if own.partition == checker.partition and own.is_idle]
            newest = max(idle, key=lambda own: own.epoch, default=None)
            checker.check(newest, self.alert_events(checker.partition))
