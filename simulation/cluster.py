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
from gradwatch_wire import Bye, Hello
from gradwatch_wire.health import RankState
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session
from simulation.aggregator import Aggregator, Killed
from simulation.clock import Clock
from simulation.faults import FaultInjector
from simulation.greedy import AFTER_A_ROUND, GreedyPeer
from simulation.invariants import Committed, InvariantChecker, Violation, key_of, require
from simulation.network import Network
from simulation.replay import Replay, check_replay, check_store
from simulation.scenario import RUN, SECOND_NS, Scenario
from simulation.spill import SimulatedOrphan
from simulation.spill_replayer import SpillReplayer
from simulation.worker import Worker

TRACE_LINES: Final = 60
MAX_TICKS: Final = 400
"""After which the faults are over, whatever was reached."""

HEALING_S: Final = 240.0
"""A living worker has delivered everything this long after the last fault."""

MAX_RESTARTS: Final = 2

MAX_LATE: Final = 3
"""Processes of jobs from before that say HELLO only now."""

COPY_CHANCE: Final = 0.1
"""That the data directory is copied in a tick, where that is ever put back."""

LATE_S: Final = 40.0
"""The longest time that one of them lives."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What is put together; a test plants a bug by a subclass."""

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
            random,
            hwm=scenario.hwm,
            delay_s=scenario.delay_s,
            duplicate=scenario.duplicate,
        )
        self.workers: list[Worker] = []
        self.orphans: dict[bytes, SimulatedOrphan] = {}  # by session
        self.replayers: list[SpillReplayer] = []
        self.greedy: GreedyPeer | None = None
        if scenario.greedy:
            self.greedy = GreedyPeer(scenario.greedy, random, self.network, self.invariants)
        self._random = random
        self._parts = parts
        self.faults = FaultInjector(scenario, random, self.clock, self.note)
        self._fuse = 0
        self._replayed = Replay()
        self._copy: tuple[bytes, Committed] | None = None  # of the data directory
        self._down_until_s = 0.0
        self._num_restarts = self._num_late = 0
        self.aggregator = Aggregator(self, parts.engine)
        self._launch(range(scenario.world))

    def note(self, *what: object) -> None:
        """Write a line of the trace."""
        self.trace.append((self.clock.now_s, what))

    # The phases of a run.

    def run(self) -> None:
        """Let faults happen, then end them all, and see whether all promises were kept."""
        for number in range(MAX_TICKS):
            if all(not w.is_alive or w.done for w in self.workers):
                break
            self._tick()
            if number % 128 == 127:
                self._check_replay()
        self._heal()
        self._until("a living worker delivers everything", lambda w: not w.is_alive or w.drained)
        for worker in self._living:
            worker.close()
        self._until("a worker that closes is let go", lambda w: not w.is_alive)
        self._replay(self._find_orphans())
        self._until("what was left in spill files is sent", self._is_sent)
        self._until("what arrived is taken in", lambda _: not self.aggregator.has_waiting)
        for _ in range(int(self.scenario.session_timeout_s + LATENESS_NS / SECOND_NS) + 4):
            self.clock.pass_time(1.0)
            self._tick()
        self._check_end()

    def _find_orphans(self) -> list[SimulatedOrphan]:
        """Return what killed workers left in their spill files, and nobody sends now."""
        for worker in self.workers:
            spill = worker.account.spill
            gone = not worker.is_alive and not worker.drained
            if gone and spill is not None and worker.session.id not in self.orphans:
                self.note(worker.name, "left records in its spill files")
                orphan = SimulatedOrphan(worker.session.id, worker.hello, spill)
                self.orphans[worker.session.id] = orphan
        return [o for o in self.orphans.values() if not o.is_over and not o.is_locked]

    def _replay(self, orphans: list[SimulatedOrphan]) -> None:
        """Begin to send what was left, as `gradwatch replay` does."""
        for orphan in orphans:
            self.replayers.append(SpillReplayer(orphan.claim(), self.network, self._random))

    def _is_sent(self, worker: Worker) -> bool:
        orphan = self.orphans.get(worker.session.id)
        return orphan is None or orphan.is_over

    @property
    def _living(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.is_alive]

    def _until(self, promise: str, reached: Callable[[Worker], bool]) -> None:
        deadline_s = self.clock.now_s + HEALING_S
        while not all(map(reached, self.workers)):
            require(self.clock.now_s < deadline_s, promise, *(w.name for w in self._living))
            self._tick()

    def _heal(self) -> None:
        self.note("everything heals")
        self.faults.over = True
        if self.greedy is not None:
            self.greedy.leave()
        self.batch = BATCH_MESSAGES
        self._down_until_s = min(self._down_until_s, self.clock.now_s)
        for worker in self.workers:
            worker.socket.unreachable_until_s = 0.0
        self.network.heal()

    def _check_end(self) -> None:
        self._replayed = Replay()  # from the beginning, once more
        self._check_replay()
        engine = self.aggregator.engine
        if engine is None:
            raise Violation("the aggregator serves in the end")
        sessions = engine._state.sessions
        for worker in self.workers:
            said_bye = key_of(Bye()) in worker.account.stored
            # Unless a log that had everything was lost.
            orphan = self.orphans.get(worker.session.id)
            sent = worker.drained or (orphan is not None and orphan.is_stored)
            if said_bye or (sent and not worker.account.num_forgotten):
                self.invariants.check_settled(worker.session.id)
            session = sessions.get(worker.session.id)
            if session is not None:
                right = RankState.ENDED if said_bye else RankState.LOST
                promise = "who said BYE has ended, who was killed is lost"
                require(session.state is right, promise, worker.name, session.state)
        for name in AFTER_A_ROUND & set(engine.budget_use):
            used, limit = engine.budget_use[name].used, engine.budget_use.limit(name)
            require((used or 0.0) <= limit, "budgets are kept to in the end", name, used, limit)
        for run in engine._state.runs.values():
            require(not run.current.waiting, "every frame is closed in the end", run.name)

    def _check_replay(self) -> None:
        check_store(self.aggregator, self.invariants)
        check_replay(self.aggregator, self._replayed.follow(self.invariants.entries))

    # One tick.

    def _tick(self) -> None:
        self._move()
        self._serve()
        self.invariants.check_workers()
        for worker in self._living:
            why = worker.session.refused
            require(not why, "no honest process is refused", worker.name, why)
        self.aggregator.check()

    def _move(self) -> None:
        """Let time pass, and everybody but the aggregator act."""
        self.clock.pass_time(self._random.random() * self.scenario.tick_s)
        self.faults.strike_aggregator()
        if self._num_late < MAX_LATE and self.faults.chance(self.scenario.late):
            self._launch_late()
        reachable = self.aggregator.engine is not None and not self.faults.is_frozen
        for worker in self._living:
            self._befall(worker)
            if worker.is_alive:
                worker.tick(reachable=reachable)
        if self.greedy is not None and not self.faults.over:
            self.greedy.tick(self.clock.now_s, reachable=reachable)
        for replayer in self.replayers:
            replayer.tick(self.clock.now_s, reachable=reachable)
        self.network.sweep()

    def _befall(self, worker: Worker) -> None:
        if self.clock.now_s > worker.leaves_s:
            self.note(worker.name, "is found and killed")
            worker.leave()
            return
        if self.faults.chance(self.scenario.kill):
            self._kill(worker)
            return
        if worker.done and not worker.is_closing and self.faults.chance(0.2):
            self.note(worker.name, "closes")
            worker.close()
        self.faults.strike(worker)

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
            self._check_replay()
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

    def _kill(self, worker: Worker) -> None:
        """Kill a worker; its launcher starts it again, or the whole job, or gives up."""
        self.note(worker.name, "killed at step", worker.step)
        worker.leave()
        if self._num_restarts == MAX_RESTARTS:
            return
        self._num_restarts += 1
        match self._random.choice(("nothing", "rank", "job")):
            case "rank":
                self._launch([worker.rank])
            case "job":
                for other in self._living:
                    other.leave()
                self._launch(range(self.scenario.world))

    def _launch(self, ranks: range | list[int]) -> None:
        """Start workers. What earlier ones of their ranks left they send, or somebody by hand."""
        orphans = self._find_orphans()
        by_hand = [o for o in orphans if o.rank not in ranks or self._random.random() < 0.5]
        self._replay(by_hand)
        for rank in ranks:
            own = [o.claim() for o in orphans if o.rank == rank and not o.is_locked]
            self._attach(self._hello(rank, f"j{self._num_restarts}"), own)

    def _launch_late(self) -> None:
        """Start a process that nobody waits for any more: its job was killed, or is not known."""
        self._num_late += 1
        hellos = [worker.hello for worker in self.workers if not worker.is_alive]
        late = self._attach(self._random.choice([*hellos, self._hello(0, "before")]), [])
        late.leaves_s = self.clock.now_s + self._random.random() * LATE_S
        self.note(late.name, "attaches late")

    def _hello(self, rank: int, job: str) -> Hello:
        return Hello(run=RUN, rank=rank, world=self.scenario.world, job=job)

    def _attach(self, hello: Hello, orphans: list[SimulatedOrphan]) -> Worker:
        worker = Worker(
            self.scenario,
            self._random,
            self.clock,
            self.network,
            self.invariants,
            self._parts.session,
            hello,
            orphans,
        )
        self.workers.append(worker)
        return worker
