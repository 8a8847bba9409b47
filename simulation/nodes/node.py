"""A node: a lease, the partitions that it owns, and a gateway for the workers that attach to it."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, cast

from gradwatch_server.cluster.ownership import Owner, partition_of, plan
from gradwatch_server.engine.intake import NO_BOOT
from gradwatch_wire import Ack, Envelope, Hello, decode
from simulation.network import Network
from simulation.nodes.bus import Delivery
from simulation.nodes.key_value import Key
from simulation.nodes.names import inbox_of, log_of, partition_in
from simulation.nodes.partition import PartitionEngine

if TYPE_CHECKING:
    from simulation.nodes.cluster import NodeCluster

RENEWALS: Final = 3
"""How often a lease is renewed in the time that it lasts."""


class Node:
    """One machine; each start of its process has an id of its own."""

    def __init__(self, cluster: NodeCluster, number: int, skew_s: float, network: Network) -> None:
        self.cluster = cluster
        self.number = number
        self.skew_s = skew_s
        self.network = network
        self.id = ""
        self.is_alive = False
        self.engines: dict[int, PartitionEngine] = {}
        self.held: dict[int, int] = {}  # partition -> epoch
        self.ending: list[PartitionEngine] = []
        self.without_lease_s = 0.0
        self._num_boots = 0
        self._down_until_s = self._paused_until_s = 0.0
        self._is_doomed = False
        self._is_leaving = False
        self._fuse = 0
        self._revision: int | None = None  # of its lease
        self._renewed_s = self._tried_s = 0.0
        self._partitions: dict[bytes, int] = {}  # by session
        self._waiting: dict[int, list[tuple[bytes, list[bytes]]]] = defaultdict(list)

    @property
    def is_running(self) -> bool:
        """Whether it does anything just now."""
        return self.is_alive and self.cluster.clock.now_s >= self._paused_until_s

    # What befalls it.

    def befalls(self, where: str) -> bool:
        """Tell whether it stops here, for a while or for good."""
        faults = self.cluster.faults
        if faults.over or not faults.scenario.points:
            return False
        self._fuse -= 1
        if self._fuse >= 0:
            return False
        self._light()
        if faults.chance(faults.scenario.pauses):
            seconds = faults.random.random() * faults.scenario.pause_s
            self._paused_until_s = self.cluster.clock.now_s + seconds
            self._note("is paused at", where, "for", round(seconds, 1), "s")
        else:
            self._is_doomed = True
            self._note("is killed at", where)
        return True

    def _light(self) -> None:
        faults = self.cluster.faults
        self._fuse = faults.random.randint(1, 2 * faults.scenario.points or 1)

    def heal(self) -> None:
        """Be started, and go on, as soon as may be."""
        self._paused_until_s = self._down_until_s = 0.0

    def leave(self) -> None:
        """Be told to end: what it holds is released first."""
        self._is_leaving = True

    def _die(self) -> None:
        faults, clock = self.cluster.faults, self.cluster.clock
        for engine in [*self.engines.values(), *self.ending]:
            engine.kill()
        self.engines, self.held, self.ending = {}, {}, []
        self.is_alive = self._is_doomed = self._is_leaving = False
        self.cluster.bus.hear_no_more(self.number)
        self.network.restart()
        self._down_until_s = clock.now_s + faults.random.random() * faults.scenario.outage_s

    def end(self) -> None:
        """End it with the simulation."""
        self._die()

    def _boot(self) -> None:
        self._num_boots += 1
        self.id = f"n{self.number}.{self._num_boots}"
        self.is_alive = True
        self._revision = None
        self._partitions, self._waiting = {}, defaultdict(list)
        self._light()
        self._tried_s = -1e9
        self.cluster.bus.listen(self.number, self.id)
        self._note("starts")

    # A tick.

    def step(self) -> None:
        """Do what is due, in any order: its threads know nothing of each other."""
        if not self.is_alive and self.cluster.clock.now_s >= self._down_until_s:
            self._boot()
        threads = [
            self._keep,
            self._route,
            *(e.step for e in [*self.engines.values(), *self.ending]),
        ]
        self.cluster.random.shuffle(threads)
        for thread in threads:
            if self.is_running and not self._is_doomed:
                thread()
        if self._is_doomed:
            self._die()

    # The lease, and what it is for.

    def _keep(self) -> None:
        now_s = self.cluster.clock.now_s
        self.ending = [engine for engine in self.ending if not engine.is_over]
        for partition, engine in list(self.engines.items()):
            if engine.is_over and not engine.is_stopping:  # it is taken anew, as another epoch
                del self.engines[partition]
                self._lose(partition)
        if self._revision is not None and now_s - self._renewed_s >= self.cluster.scenario.lease_s:
            self._note("has lost its lease")
            self._lose_all()
        if not self._reaches_buckets():
            return
        if now_s - self._tried_s >= self.cluster.scenario.lease_s / RENEWALS:
            self._renew(now_s)
        self._follow_plan(now_s)
        self._start_engines()

    def _reaches_buckets(self) -> bool:
        faults = self.cluster.faults
        return faults.reaches_nats(self.number) and faults.has_leader

    def _renew(self, now_s: float) -> None:
        self._tried_s = now_s
        if self._is_leaving and not self.held:
            self._is_doomed = True
            self._note("leaves")
            return
        revision = self.cluster.nodes_bucket.put(self.id, "", self._revision or 0, now_s)
        if revision is None:
            self._note("finds its lease gone")
            self._lose_all()
            return
        self._revision, self._renewed_s = revision, now_s

    def _follow_plan(self, now_s: float) -> None:
        cluster = self.cluster
        records = cluster.owners_bucket.entries(now_s)
        live = cluster.live_nodes(now_s)
        owners = {p: _owner(records.get(str(p))) for p in range(cluster.scenario.partitions)}
        own = plan(self.id, live, owners, self.held)
        for partition in own.lose:
            self._note("finds that it does not own", partition)
            self._lose(partition)
        release = sorted(self.held) if self._is_leaving else own.release
        for partition in release:
            self._release(partition, owners[partition], now_s)
        for partition in own.take if not self._is_leaving else ():
            self._take(partition, owners[partition], now_s)

    def _take(self, partition: int, owner: Owner, now_s: float) -> None:
        if any(engine.partition == partition for engine in self.ending):
            return
        bucket = self.cluster.owners_bucket
        epoch = bucket.put(str(partition), self.id, owner.epoch, now_s)
        if epoch is not None:
            self._note("takes partition", partition, "as epoch", epoch)
            self.held[partition] = epoch
            self.cluster.num_epochs += 1
            self.cluster.bus.listen(self.number, inbox_of(partition))

    def _release(self, partition: int, owner: Owner, now_s: float) -> None:
        engine = self.engines.get(partition)
        if engine is not None and not engine.is_over:
            engine.stop()
            return
        self._lose(partition)
        self.cluster.owners_bucket.put(str(partition), "", owner.epoch, now_s)
        self._note("releases partition", partition)

    def _lose_all(self) -> None:
        self._revision = None
        for partition in list(self.held):
            self._lose(partition)

    def _lose(self, partition: int) -> None:
        self.held.pop(partition, None)
        self._waiting.pop(partition, None)
        self.cluster.bus.hear_no_more(self.number, inbox_of(partition))
        engine = self.engines.pop(partition, None)
        if engine is not None:
            engine.stop()
            self.ending.append(engine)

    def _start_engines(self) -> None:
        for partition, epoch in self.held.items():
            if partition in self.engines:
                continue
            if partition in self._waiting or self.cluster.stream.last(log_of(partition)) > 0:
                engine = PartitionEngine(self, partition, epoch)
                engine.network.arrived.extend(self._waiting.pop(partition, ()))
                self.engines[partition] = engine

    # The gateway.

    def publish(self, subject: str, message: tuple[bytes, object]) -> None:
        """Send a message to those who listen."""
        self.cluster.bus.publish(self.number, subject, message)

    def _route(self) -> None:
        for delivery in self.cluster.bus.receive(self.number):
            self._deliver(delivery)
        now_s = self.cluster.clock.now_s
        while (found := self.network.receive(now_s)) is not None:
            self._forward(*found)

    def _deliver(self, delivery: Delivery) -> None:
        peer, message = delivery.message
        if delivery.subject == self.id:
            self.network.reply(peer, cast("Envelope", message), self.cluster.clock.now_s)
            return
        partition = partition_in(delivery.subject)
        arrived = peer, cast("list[bytes]", message)
        if partition in self.engines:
            self.engines[partition].network.arrived.append(arrived)
        else:
            self._waiting[partition].append(arrived)

    def _forward(self, peer: bytes, frames: list[bytes]) -> None:
        envelope = decode(frames)
        session = envelope.session
        if isinstance(envelope.record, Hello):
            partitions = self.cluster.scenario.partitions
            self._partitions[session] = partition_of(envelope.record.run, partitions)
        partition = self._partitions.get(session)
        if partition is None:
            again = Envelope(session=session, record=Ack(boot_id=NO_BOOT, acked=0))
            self.network.reply(peer, again, self.cluster.clock.now_s)
            return
        self.publish(inbox_of(partition), (b"%s/%s" % (self.id.encode(), peer), frames))

    def _note(self, *what: object) -> None:
        self.cluster.note(self.id, *what)


def _owner(record: Key | None) -> Owner:
    return Owner(None, 0) if record is None else Owner(record.value or None, record.revision)
