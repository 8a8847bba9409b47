"""The processes of one run: they train, are killed and started again, and leave spill files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from gradwatch_server.core.session import RankSession
from gradwatch_wire import Bye, Hello
from gradwatch_wire.health import RankState
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session
from simulation.clock import Clock
from simulation.faults import FaultInjector
from simulation.invariants import InvariantChecker, key_of, require
from simulation.network import Network, Socket
from simulation.scenario import RUN, Scenario
from simulation.spill import SimulatedOrphan
from simulation.spill_replayer import SpillReplayer
from simulation.worker import Worker

MAX_RESTARTS: Final = 2

MAX_LATE: Final = 3
"""Processes of jobs from before that say HELLO only now."""

LATE_S: Final = 40.0
"""The longest time that one of them lives."""


class Job:
    """One run, and who sends what is left of it."""

    def __init__(
        self,
        scenario: Scenario,
        random: Random,
        clock: Clock,
        invariants: InvariantChecker,
        faults: FaultInjector,
        note: Callable[..., None],
        session: type[Session[Outbox]],
        network: Network,
    ) -> None:
        self.workers: list[Worker] = []
        self._orphans: dict[bytes, SimulatedOrphan] = {}  # by session
        self._replayers: list[SpillReplayer] = []
        self._scenario = scenario
        self._random = random
        self._clock = clock
        self._invariants = invariants
        self._faults = faults
        self._note = note
        self._session = session
        self._network = network
        self._num_restarts = self._num_late = 0
        self._launch(range(scenario.world))

    @property
    def living(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.is_alive]

    @property
    def is_trained(self) -> bool:
        return all(not worker.is_alive or worker.done for worker in self.workers)

    # A tick.

    def work(self, *, reachable: bool) -> None:
        """Let its processes train and send, and be killed, and others begin."""
        if self._num_late < MAX_LATE and self._faults.chance(self._scenario.late):
            self._launch_late()
        for worker in self.living:
            self._befall(worker)
            if worker.is_alive:
                worker.tick(reachable=reachable)

    def replay(self, *, reachable: bool) -> None:
        """Let those send who send what killed processes left."""
        for replayer in self._replayers:
            replayer.tick(self._clock.now_s, reachable=reachable)

    def _befall(self, worker: Worker) -> None:
        if self._clock.now_s > worker.leaves_s:
            self._note(worker.name, "is found and killed")
            worker.leave()
            return
        if self._faults.chance(self._scenario.kill):
            self._kill(worker)
            return
        if worker.done and not worker.is_closing and self._faults.chance(0.2):
            self._note(worker.name, "closes")
            worker.close()
        self._faults.strike(worker)

    def _kill(self, worker: Worker) -> None:
        """Kill a worker; its launcher starts it again, or the whole job, or gives up."""
        self._note(worker.name, "killed at step", worker.step)
        worker.leave()
        if self._num_restarts == MAX_RESTARTS:
            return
        self._num_restarts += 1
        match self._random.choice(("nothing", "rank", "job")):
            case "rank":
                self._launch([worker.rank])
            case "job":
                for other in self.living:
                    other.leave()
                self._launch(range(self._scenario.world))

    # Who begins.

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
        late.leaves_s = self._clock.now_s + self._random.random() * LATE_S
        self._note(late.name, "attaches late")

    def _hello(self, rank: int, job: str) -> Hello:
        return Hello(run=RUN, rank=rank, world=self._scenario.world, job=job)

    def _attach(self, hello: Hello, orphans: list[SimulatedOrphan]) -> Worker:
        worker = Worker(
            self._scenario,
            self._random,
            self._clock,
            Socket(self._network, self._random),
            self._invariants,
            self._session,
            hello,
            orphans,
        )
        self.workers.append(worker)
        return worker

    # What is left.

    def replay_orphans(self) -> None:
        """Begin to send what was left and nobody sends, as `gradwatch replay` does."""
        self._replay(self._find_orphans())

    def is_sent(self, worker: Worker) -> bool:
        """Tell whether nothing is left of a worker that is to be sent."""
        orphan = self._orphans.get(worker.session.id)
        return orphan is None or orphan.is_over

    def _find_orphans(self) -> list[SimulatedOrphan]:
        """Return what killed workers left in their spill files, and nobody sends now."""
        for worker in self.workers:
            spill = worker.account.spill
            gone = not worker.is_alive and not worker.drained
            if gone and spill is not None and worker.session.id not in self._orphans:
                self._note(worker.name, "left records in its spill files")
                orphan = SimulatedOrphan(worker.session.id, worker.hello, spill)
                self._orphans[worker.session.id] = orphan
        return [o for o in self._orphans.values() if not o.is_over and not o.is_locked]

    def _replay(self, orphans: list[SimulatedOrphan]) -> None:
        for orphan in orphans:
            self._replayers.append(
                SpillReplayer(orphan.claim(), Socket(self._network, self._random))
            )

    # What was promised to them.

    def check_accepted(self) -> None:
        """Check that nobody of them is refused."""
        for worker in self.living:
            why = worker.session.refused
            require(not why, "no honest process is refused", worker.name, why)

    def check_settled(self, sessions: Mapping[bytes, RankSession]) -> None:
        """Check in the end that what they made is stored or declared lost, and how they ended."""
        for worker in self.workers:
            said_bye = key_of(Bye()) in worker.account.stored
            # Unless a log that had everything was lost.
            orphan = self._orphans.get(worker.session.id)
            sent = worker.drained or (orphan is not None and orphan.is_stored)
            if said_bye or (sent and not worker.account.num_forgotten):
                self._invariants.check_settled(worker.session.id)
            session = sessions.get(worker.session.id)
            if session is not None:
                right = RankState.ENDED if said_bye else RankState.LOST
                promise = "who said BYE has ended, who was killed is lost"
                require(session.state is right, promise, worker.name, session.state)
