"""What a killed worker left in its spill files, sent on a connection of its own."""

from __future__ import annotations

from random import Random

from gradwatch_wire.session.driver import send_due
from gradwatch_wire.session.replayed import as_replayed
from gradwatch_wire.session.session import Phase, Session
from gradwatch_wire.session.spill_source import SpillSource
from simulation.network import Network, Socket
from simulation.spill import SimulatedSpill
from simulation.worker import Worker


class SpillReplayer:
    """The real session of a worker that is gone, over its simulated files."""

    def __init__(
        self, worker: Worker, spill: SimulatedSpill, network: Network, random: Random
    ) -> None:
        source = SpillSource(spill.read_from)
        self.session = Session(worker.session.id, as_replayed(worker.hello), source)
        self.socket = Socket(network, random)

    @property
    def is_done(self) -> bool:
        """Whether everything is stored."""
        return self.session.is_over and self.session.phase is not Phase.REFUSED

    def tick(self, now_s: float, *, reachable: bool) -> None:
        """Do a round of whatever process sends it."""
        if self.session.is_over:
            self.socket.close()
            return
        self.socket.connect(now_s, reachable=reachable)
        for envelope in self.socket.receive(now_s):
            self.session.receive(envelope, now_s)
        self.session.alerts.clear()
        send_due(self.session, lambda frames: self.socket.send(frames, now_s), now_s)
