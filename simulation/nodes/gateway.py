"""The gateway of a node: what workers send goes on to the owner, and answers come back.

Which way a session goes, and who is to be asked where it is, the real `Sessions` say.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final

from gradwatch_server.cluster.messages.parcels import Answer, Parcel
from gradwatch_server.cluster.messages.sessions import Sessions
from gradwatch_server.cluster.ownership.plan import partition_of
from gradwatch_server.engine.intake import NO_BOOT
from gradwatch_wire import Ack, Envelope, Hello, Record, decode
from simulation.clock import Clock
from simulation.network import Network

LOOK_S: Final = 1.0
"""How often it is looked which sessions wait in vain."""


class SimulatedGateway:
    """What one start of a node has of its clients."""

    def __init__(
        self,
        network: Network,
        clock: Clock,
        partitions: int,
        carry: Callable[[int, list[Parcel]], bool],
    ) -> None:
        """Begin without sessions.

        Args:
            network: The connections of its clients.
            clock: The time.
            partitions: How many there are.
            carry: Sends on what came for a partition; False if that certainly does not arrive.
        """
        self._network = network
        self._clock = clock
        self._num_partitions = partitions
        self._carry = carry
        self._sessions = Sessions()
        self._batches: dict[int, list[Parcel]] = defaultdict(list)
        self._looked_s = 0.0

    def work(self) -> None:
        """Send on what has arrived."""
        now_s = self._clock.now_s
        while (found := self._network.receive(now_s)) is not None:
            self._take(*found)
        for partition, parcels in self._batches.items():
            if not self._carry(partition, parcels):
                for parcel in parcels:
                    if parcel.frames:
                        self._sessions.note_lost(decode(parcel.frames).session)
        self._batches.clear()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            for session, route in self._sessions.stalled(now_s):
                self._reply(route.peer, session, Ack(boot_id=NO_BOOT, acked=0))

    def _take(self, peer: bytes, frames: list[bytes]) -> None:
        envelope = decode(frames)
        session, record = envelope.session, envelope.record
        if isinstance(record, Hello):
            partition = partition_of(record.run, self._num_partitions)
            self._sessions.open(session, partition, peer)
        route = self._sessions.find(session)
        if route is None:
            self._reply(peer, session, Ack(boot_id=NO_BOOT, acked=0))
            return
        self._sessions.note_sent(session, peer, envelope.seq, self._clock.now_s)
        self._batches[route.partition].append(Parcel(peer, frames))

    def deliver(self, answers: Iterable[Answer]) -> None:
        """Send answers to clients; tell the owner of those that are gone."""
        for answer in answers:
            if answer.acked is not None:
                self._sessions.note_acked(answer.session, answer.acked, self._clock.now_s)
            envelope = decode(answer.frames)
            if not self._network.reply(answer.peer, envelope, self._clock.now_s):
                route = self._sessions.find(answer.session)
                if route is not None:
                    self._batches[route.partition].append(Parcel(answer.peer, []))

    def _reply(self, peer: bytes, session: bytes, record: Record) -> None:
        self._network.reply(peer, Envelope(session=session, record=record), self._clock.now_s)
