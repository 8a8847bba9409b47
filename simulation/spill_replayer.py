"""What a killed worker left in its spill files, sent by whoever comes after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from gradwatch_wire.session.replay import Replay
from gradwatch_wire.session.spill import Spilled, SpilledSession
from simulation.invariants import Account
from simulation.network import Network, Socket
from simulation.spill import SimulatedSpill
from simulation.worker import BATCH, Worker


@dataclass(frozen=True)
class Source(SpilledSession):
    """A session in simulated files."""

    spill: SimulatedSpill

    def records(self, first: int) -> Iterator[Spilled]:
        """Yield its records from number *first* on."""
        while (item := self.spill.find(first)) is not None:
            yield Spilled(item.seq, item.kind, item.time_ns, item.body)
            first = item.seq + 1

    def remove(self) -> None:
        """Keep them: they are looked at in the end."""


class SpillReplayer:
    """The real replay of one session, on a socket of its own."""

    def __init__(
        self, worker: Worker, spill: SimulatedSpill, network: Network, random: Random
    ) -> None:
        self.account: Account = worker.account
        self.session = worker.session
        self.replay = Replay(Source((), worker.session, worker.hello, spill))
        self.socket = Socket(network, random)

    def tick(self, now_s: float, *, reachable: bool) -> None:
        """Do a round of whoever sends it."""
        if self.replay.over:
            self.socket.close()
            return
        self.socket.connect(now_s, reachable=reachable)
        for envelope in self.socket.hear(now_s):
            self.replay.receive(envelope, now_s)
        for _ in range(BATCH):
            frames = self.replay.due(now_s)
            if frames is None or not self.socket.send(frames, now_s):
                return
            self.replay.sent(now_s)
