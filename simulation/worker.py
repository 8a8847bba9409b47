"""A worker: the real protocol and its ring, with what the sender thread does around them."""

from __future__ import annotations

import math
from random import Random
from typing import Final

from gradwatch._transport.protocol import Phase, Protocol
from gradwatch._transport.sender import CLOSE_S
from gradwatch_wire import Bye, Column, Event, Gains, Hello, Manifest, Record, Stats
from simulation.clock import Clock
from simulation.invariants import Account, InvariantChecker, key_of
from simulation.network import Network, Socket
from simulation.scenario import Scenario
from simulation.spill import SimulatedSpill

LAYERS: Final = ("stem", "block", "head")
BATCH: Final = 256


class Worker:
    """One attach of one rank, until it closed or was killed."""

    def __init__(
        self,
        scenario: Scenario,
        random: Random,
        clock: Clock,
        network: Network,
        audit: InvariantChecker,
        protocol: type[Protocol],
        hello: Hello,
    ) -> None:
        self.session = random.randbytes(16)
        self.rank = hello.rank
        self.name = f"rank {hello.rank} {hello.job} {self.session[:2].hex()}"
        spill = SimulatedSpill(scenario.spill) if scenario.spill else None
        self.protocol = protocol(self.session, hello, scenario.ring_bytes, spill)
        self.hello = hello
        self.socket = Socket(network, random)
        self.account = Account(self.name, self.protocol, spill, scenario.ring_bytes)
        audit.accounts[self.session] = self.account
        self.step = 0
        self.is_alive = True
        self.closes_s: float | None = None
        self._scenario = scenario
        self._random = random
        self._clock = clock
        self._next_s = clock.now_s
        self._stepped_s = clock.now_s
        self._append(_manifest(1, LAYERS))

    @property
    def done(self) -> bool:
        """Whether it took all its steps."""
        return self.step >= self._scenario.steps

    def tick(self, *, reachable: bool) -> None:
        """Train for as long as time has passed, and do a round of the sender thread."""
        now_s = self._clock.now_s
        while not self.done and self.closes_s is None and self._next_s <= now_s:
            self._train()
        self.socket.connect(now_s, reachable=reachable)
        self._round(now_s)
        if self.closes_s is not None and (self.protocol.drained or now_s > self.closes_s):
            self.leave()

    def close(self, reason: str = "closed") -> None:
        """Say BYE, and wait for its acknowledgement no longer than the sender does."""
        self._append(Bye(reason=reason))
        self.closes_s = self._clock.now_s + CLOSE_S

    def leave(self) -> None:
        """Be gone; what was sent may still arrive."""
        self.is_alive = False
        self.account.is_over = True
        self.socket.close()

    def _train(self) -> None:
        self._next_s += self._random.random() * 2 * self._scenario.step_s
        self._stepped_s = self._clock.now_s
        manifest_id = 2 if self.step * 2 >= self._scenario.steps else 1
        self._append(_stats(self.step, manifest_id, self._scenario.mood + self.step))
        if self.step % 8 == 3:
            self._append(Event(name="mark", step=self.step))
        if self.step % 8 == 5:
            norms = Column.pack("<f8", [1.0, 3.0, 9.0])
            self._append(Gains(step=self.step, blocks=LAYERS, norm_type="l2", norms=norms))
        self.step += 1
        if self.step * 2 - self._scenario.steps in (0, 1):
            self._append(_manifest(2, LAYERS[:2]))

    def _append(self, record: Record) -> None:
        if self.protocol.append(record, self._clock.wall_ns):
            self.account.made.append(key_of(record))

    def _round(self, now_s: float) -> None:
        protocol, socket = self.protocol, self.socket
        for envelope in socket.hear(now_s):
            protocol.receive(envelope, now_s)
        protocol.alerts.clear()
        greeting = protocol.due(now_s)
        beat = protocol.beat(self.step - 1, now_s - self._stepped_s, now_s)
        if greeting is not None and socket.send(greeting, now_s):
            protocol.greeted(now_s)
        if beat is not None:
            socket.send(beat, now_s)
        for _ in range(BATCH):
            frames = protocol.peek()
            if frames is None or not socket.send(frames, now_s):
                return
            protocol.sent()

    @property
    def drained(self) -> bool:
        """Whether nothing waits for an acknowledgement, and nobody refused it."""
        return self.protocol.drained and self.protocol.phase is not Phase.REFUSED


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
    norm = (1.0, 1.0, 500.0, 1e-9, math.nan, 2.0, math.inf)[mood // 3 * 5 % 7]
    l2 = [1.0] * (len(LAYERS) - manifest_id) + [norm]
    return Stats(manifest_id=manifest_id, step=step, columns={"l2": Column.pack("<f8", l2)})
