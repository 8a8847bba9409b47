"""`gradwatch replay`: what a killed worker left, sent on a connection of its own."""

from __future__ import annotations

from gradwatch_wire.session.spill_source import OrphanedSessions
from simulation.network import Socket
from simulation.spill import SimulatedOrphan


class SpillReplayer:
    """Sends one session, until everything is stored or it is refused."""

    def __init__(self, orphan: SimulatedOrphan, socket: Socket) -> None:
        self._orphan = orphan
        self._sessions = OrphanedSessions([orphan])
        self._socket = socket

    def tick(self, now_s: float, *, reachable: bool) -> None:
        if self._orphan.is_over:
            self._socket.close()
            return
        self._socket.connect(now_s, reachable=reachable)
        for envelope in self._socket.receive(now_s):
            self._sessions.receive(envelope, now_s)
        self._sessions.send(lambda message: self._socket.send(message, now_s), now_s)
