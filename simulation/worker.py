"""A worker: the real session and its driver, with what the sender thread does around them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from random import Random
from typing import Final

from gradwatch_wire import Bye, Column, Event, Gains, Hello, Manifest, Record, Stats
from gradwatch_wire.codec import encode_body
from gradwatch_wire.session.driver import SessionDriver
from gradwatch_wire.session.outbox import Outbox
from gradwatch_wire.session.session import Session, SessionPhase
from gradwatch_wire.session.spill_source import OrphanedSessions
from simulation.clock import Clock
from simulation.invariants import Account, InvariantChecker, key_of
from simulation.network import Socket
from simulation.scenario import Scenario
from simulation.spill import SimulatedOrphan, SimulatedSpill

LAYERS: Final = ("stem", "block", "head")


class Worker:
    """One attach of one rank, until it closed or was killed."""

    def __init__(
        self,
        scenario: Scenario,
        random: Random,
        clock: Clock,
        socket: Socket,
        invariants: InvariantChecker,
        session: type[Session[Outbox]],
        hello: Hello,
        orphans: Iterable[SimulatedOrphan],
    ) -> None:
        session_id = random.randbytes(16)
        self.rank = hello.rank
        self.name = f"rank {hello.rank} {hello.job} {session_id[:2].hex()}"
        spill = SimulatedSpill(scenario.spill) if scenario.spill else None
        outbox = Outbox(scenario.buffer_bytes, spill)
        self.session = session(session_id, hello, outbox, scenario.in_flight)
        self.hello = hello
        self.socket = socket
        self.account = Account(self.name, outbox, spill, scenario.buffer_bytes)
        invariants.accounts[session_id] = self.account
        self.step = 0
        self.is_alive = True
        self.leaves_s = math.inf  # when somebody finds and kills it
        self._orphaned = OrphanedSessions(orphans)
        self._driver = SessionDriver(self.session, clock.now_s, self._orphaned)
        self._scenario = scenario
        self._random = random
        self._clock = clock
        self._next_s = clock.now_s
        self._append(_manifest(1, LAYERS))

    @property
    def done(self) -> bool:
        return self.step >= self._scenario.steps

    def tick(self, *, reachable: bool) -> None:
        """Train for as long as time has passed, and do a round of the sender thread."""
        now_s = self._clock.now_s
        while not self.done and not self.is_closing and self._next_s <= now_s:
            self._train()
        self.socket.connect(now_s, reachable=reachable)
        self._round(now_s)
        if self._driver.is_closed(now_s):
            self.leave()

    def close(self, reason: str = "closed") -> None:
        """Say BYE, and wait for its acknowledgement no longer than the sender does."""
        self._append(Bye(reason=reason))
        self._driver.close(self._clock.now_s)

    def leave(self) -> None:
        """End at once, as by SIGKILL; what was sent may still arrive."""
        self.is_alive = False
        self.account.is_over = True
        self._orphaned.close()
        self.socket.close()

    def _train(self) -> None:
        self._next_s += self._random.random() * 2 * self._scenario.step_s
        self._driver.stepped(self.step, self._clock.now_s)
        manifest_id = 2 if self.step * 2 >= self._scenario.steps else 1
        bad = self.step - self._scenario.warm_steps
        mood = self._scenario.mood + bad if bad >= 0 else 0
        self._append(_stats(self.step, manifest_id, mood))
        if self.step % 8 == 3:
            self._append(Event(name="mark", step=self.step))
        if self.step % 8 == 5:
            norms = Column.pack("<f8", [1.0, 3.0, 9.0])
            self._append(Gains(step=self.step, blocks=LAYERS, norm_type="l2", norms=norms))
        self.step += 1
        if self.step * 2 - self._scenario.steps in (0, 1):
            self._append(_manifest(2, LAYERS[:2]))

    def _append(self, record: Record) -> None:
        if self.session.source.append(record, self._clock.wall_ns):
            self.account.made.append(key_of(record))
            if isinstance(record, Manifest):
                seq = self.session.source.buffer.last
                self.account.manifests[seq] = len(encode_body(record)[1])

    def _round(self, now_s: float) -> None:
        for envelope in self.socket.receive(now_s):
            self._driver.receive(envelope, now_s)
        self.session.alerts.clear()
        self._driver.send(lambda message: self.socket.send(message, now_s), now_s)

    @property
    def is_closing(self) -> bool:
        """Whether it has said BYE."""
        return self._driver.is_closing

    @property
    def drained(self) -> bool:
        """Whether nothing waits for an acknowledgement, and nobody refused it."""
        return self.session.is_drained and self.session.phase is not SessionPhase.REFUSED


def _manifest(number: int, names: tuple[str, ...]) -> Manifest:
    return Manifest(
        manifest_id=number,
        names=names,
        numel=Column.pack("<u8", [10] * len(names)),
        dtypes=("float32",) * len(names),
        order="forward",
    )


def _stats(step: int, manifest_id: int, mood: int) -> Stats:
    """Make the numbers of a step: every rank has the same, some of them are bad."""
    norm = (1.0, 1.0, 500.0, 1e-9, math.nan, 6.0, math.inf)[mood // 3 * 5 % 7]
    l2 = [1.0] * (len(LAYERS) - manifest_id) + [norm]
    return Stats(manifest_id=manifest_id, step=step, columns={"l2": Column.pack("<f8", l2)})
