"""The cluster: workers, network, aggregator and clock, moved on tick by tick from one seed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from gradwatch_server.core.frames.assembler import LATENESS_NS
from gradwatch_server.engine.engine import Engine
from gradwatch_server.ingest.inbox import BATCH_MESSAGES
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session
from simulation.aggregator import Aggregator, Killed
from simulation.clock import Clock
from simulation.faults import FaultInjector
from simulation.greedy import AFTER_A_ROUND, GreedyPeer
from simulation.invariants import Committed, InvariantChecker, Violation, require
from simulation.job import Job
from simulation.network import Network
from simulation.replay import Replay, alert_events, check_replay, check_store
from simulation.scenario import SECOND_NS, Scenario
from simulation.worker import Worker

TRACE_LINES: Final = 60
MAX_TICKS: Final = 400
"""After which the faults are over, whatever was reached."""

HEALING_S: Final = 240.0
"""A living worker has delivered everything this long after the last fault."""

COPY_CHANCE: Final = 0.1
"""That the data directory is copied in a tick, where that is ever put back."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts that are put together; a test plants a bug by a subclass."""

    engine: type[Engine] = Engine
    session: type[Session[Outbox]] = Session


class Cluster:
    """One run of a simulated cluster."""

    def __init__(self, scenario: Scenario, random: Random, parts: Parts) -> None:
        self.scenario = scenario
        self.batch = scenario.batch
        self.clock = Clock()
        self.invariants = InvariantChecker()
        self.trace: deque[tuple[float, tuple[object, ...]]] = deque(maxlen=TRACE_LINES)
        self.network = Network(
            random, hwm=scenario.hwm, delay_s=scenario.delay_s, duplicate=scenario.duplicate
        )
        self.greedy: GreedyPeer | None = None
        if scenario.greedy:
            self.greedy = GreedyPeer(scenario.greedy, random, self.network, self.invariants)
        self._random = random
        self._parts = parts
        self.faults = FaultInjector(scenario, random, self.clock, self.note)
        self._fuse = 0
        self._replayed = Replay()
        self._copy: tuple[bytes, Committed] | None = None  # of the data directory
        self._is_recovered = True
        self._down_until_s = 0.0
        self.aggregator = Aggregator(self, parts.engine)
        self.job = Job(
            scenario,
            random,
            self.clock,
            self.invariants,
            self.faults,
            self.note,
            parts.session,
            self.network,
        )

    def note(self, *what: object) -> None:
        self.trace.append((self.clock.now_s, what))

    # The phases of a run.

    def run(self) -> None:
        """Let faults happen, then end them all, and see whether all promises were kept."""
        for number in range(MAX_TICKS):
            if self.job.is_trained:
                break
            self._tick()
            if number % 128 == 127:
                self._check_replay()
        self._heal()
        self._until("a living worker delivers everything", lambda w: not w.is_alive or w.drained)
        for worker in self.job.living:
            worker.close()
        self._until("a worker that closes is let go", lambda w: not w.is_alive)
        self.job.replay_orphans()
        self._until("what was left in spill files is sent", self.job.is_sent)
        self._until("what arrived is taken in", lambda _: not self.aggregator.has_waiting)
        for _ in range(int(self.scenario.session_timeout_s + LATENESS_NS / SECOND_NS) + 4):
            self.clock.pass_time(1.0)
            self._tick()
        self._check_end()

    def _until(self, promise: str, reached: Callable[[Worker], bool]) -> None:
        deadline_s = self.clock.now_s + HEALING_S
        while not all(map(reached, self.job.workers)):
            require(self.clock.now_s < deadline_s, promise, *(w.name for w in self.job.living))
            self._tick()

    def _heal(self) -> None:
        self.note("everything heals")
        self.faults.over = True
        if self.greedy is not None:
            self.greedy.leave()
        self.batch = BATCH_MESSAGES
        self._down_until_s = min(self._down_until_s, self.clock.now_s)
        for worker in self.job.workers:
            worker.socket.unreachable_until_s = 0.0
        self.network.heal()

    def _check_end(self) -> None:
        self._replayed = Replay()  # from the beginning, once more
        self._check_replay()
        engine = self.aggregator.engine
        if engine is None:
            raise Violation("the aggregator serves in the end")
        self.job.check_settled(engine._state.sessions)
        for name in AFTER_A_ROUND & set(engine.budget_use):
            used, limit = engine.budget_use[name].used, engine.budget_use.limit(name)
            require((used or 0.0) <= limit, "budgets are kept to in the end", name, used, limit)
        for run in engine._state.runs.values():
            require(not run.current.waiting, "every frame is closed in the end", run.name)

    def _check_replay(self) -> None:
        store, events = self.aggregator.store, alert_events(self.aggregator.store)
        check_store(store, events, self.invariants)
        if self.aggregator.engine is not None:
            replayed = self._replayed.follow(self.invariants.entries)
            check_replay(self.aggregator.engine, events, replayed)

    # One tick.

    def _tick(self) -> None:
        self._move()
        self._serve()
        self._check_recovered()
        self.invariants.check_workers()
        self.job.check_accepted()
        self.aggregator.check()

    def _move(self) -> None:
        """Let time pass, and everybody but the aggregator act."""
        self.clock.pass_time(self._random.random() * self.scenario.tick_s)
        self.faults.strike_aggregator()
        reachable = self.aggregator.engine is not None and not self.faults.is_frozen
        self.job.work(reachable=reachable)
        if self.greedy is not None and not self.faults.over:
            self.greedy.tick(self.clock.now_s, reachable=reachable)
        self.job.replay(reachable=reachable)
        self.network.sweep()

    def _serve(self) -> None:
        if self.aggregator.engine is None:
            if self.clock.now_s < self._down_until_s:
                return
            if self.faults.chance(self.scenario.amnesia):
                self.note("the data directory is lost")
                self.aggregator.disk.wipe()
                self._go_back(Committed())
            elif self._copy is not None and self.faults.chance(self.scenario.relapse):
                self.note("the data directory is an older copy of itself")
                disk, committed = self._copy
                self.aggregator.disk.put_back(disk)
                self._go_back(committed)
            self._fuse = self._random.randint(1, 2 * self.scenario.crash_points or 1)
            if not self.aggregator.boot():
                return
            self._is_recovered = False
        if self.faults.is_frozen:
            return
        if self.scenario.relapse and self.faults.chance(COPY_CHANCE):
            self._copy = self.aggregator.disk.copy(), self.invariants.copy()
            self.note("the data directory is copied")
        if self.faults.chance(self.scenario.restart):
            self.note("aggregator stopped and started again")
            self.aggregator.stop()
        else:
            if self.faults.chance(self.scenario.people):
                self.aggregator.ask(self._random)
            self.aggregator.step()

    def _check_recovered(self) -> None:
        """Check all runs once they are in memory after a start."""
        engine = self.aggregator.engine
        if not self._is_recovered and engine is not None and engine._recovery.is_done:
            self._is_recovered = True
            self._check_replay()

    def _go_back(self, committed: Committed) -> None:
        self.invariants.go_back(committed)
        self._replayed = Replay()

    # The surroundings of the aggregator.

    def point(self, where: str) -> None:
        """Pass a point at which the aggregator may be killed, which raises `Killed`."""
        if self.faults.over or not self.scenario.crash_points:
            return
        self._fuse -= 1
        if self._fuse < 0:
            self._down_until_s = self.clock.now_s + self._random.random() * self.scenario.outage_s
            self.note("aggregator killed at", where)
            raise Killed

    def fails(self, word: str) -> bool:
        """Tell whether a statement fails on the disk; slow ones let time pass first."""
        if word == "COMMIT" and self.faults.chance(self.scenario.slow_sync):
            seconds = self._random.random() * 8
            self.note("a commit takes", round(seconds, 1))
            self.pass_by(seconds)
        return self.faults.is_full

    def pass_by(self, seconds: float) -> None:
        """Let the others go on for a while, while the aggregator waits."""
        until_s = self.clock.now_s + seconds
        while self.clock.now_s < until_s:
            self._move()
