"""A node: a lease, the partitions that it owns, and a gateway for the workers that attach to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gradwatch_server.cluster.messages.parcels import (
    Answer,
    Parcel,
    pack_parcels,
    unpack_answers,
    unpack_parcels,
)
from gradwatch_server.cluster.partitions.partition import FIRST_RETRY_S, MAX_RETRY_S
from gradwatch_server.nats.errors import UnreachableError
from gradwatch_server.nats.key_value import KeyEntry
from simulation.network import Network
from simulation.nodes.bus import Delivery
from simulation.nodes.gateway import SimulatedGateway
from simulation.nodes.keeper import Keeper
from simulation.nodes.names import NAMES, log_of, partition_in
from simulation.nodes.partition import PartitionEngine

if TYPE_CHECKING:
    from simulation.nodes.cluster import NodeCluster


@dataclass(slots=True)
class Retry:
    """When an engine that failed is started again.

    Args:
        at_s: The time.
        pause_s: How long the next pause is.
    """

    at_s: float = 0.0
    pause_s: float = FIRST_RETRY_S

    def put_off(self, now_s: float) -> None:
        """Begin a pause, longer each time."""
        self.at_s, self.pause_s = now_s + self.pause_s, min(2 * self.pause_s, MAX_RETRY_S)


NO_RETRY: Final = Retry()


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
        self.owned: dict[int, int] = {}  # partition -> epoch
        self._outranked: dict[int, int] = {}
        self.ending: list[PartitionEngine] = []
        self.had_lease = False  # when it was checked last
        self._num_boots = 0
        self._down_until_s = self._paused_until_s = 0.0
        self._is_doomed = False
        self._fuse = 0
        self._keeper: Keeper | None = None
        self._retries: dict[int, Retry] = {}
        self._gateway: SimulatedGateway | None = None
        self._waiting: dict[int, list[tuple[str, list[Parcel]]]] = defaultdict(list)

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
        """Be told to end: what it owns is released first."""
        if self._keeper is not None:
            self._note("is stopped")
            self._keeper.stop()

    def die(self) -> None:
        """End all of it where it is."""
        faults, clock = self.cluster.faults, self.cluster.clock
        for engine in [*self.engines.values(), *self.ending]:
            engine.kill()
        if self._keeper is not None:
            self._keeper.kill()
        self._keeper = self._gateway = None
        self.engines, self.owned, self.ending = {}, {}, []
        self.is_alive = self._is_doomed = False
        self.cluster.bus.hear_no_more(self.number)
        self.network.restart()
        self._down_until_s = clock.now_s + faults.random.random() * faults.scenario.outage_s

    def _boot(self) -> None:
        self._num_boots += 1
        self.id = f"n{self.number}.{self._num_boots}"
        self.is_alive = True
        self._waiting, self._retries = defaultdict(list), {}
        self._light()
        self._keeper = Keeper(self)
        partitions = self.cluster.scenario.partitions
        self._gateway = SimulatedGateway(self.network, self.cluster.clock, partitions, self._carry)
        self.cluster.bus.listen(self.number, self._answers)
        self._note("starts")

    # A tick.

    def step(self) -> None:
        """Do what is due, in any order: its threads know nothing of each other."""
        if not self.is_alive and self.cluster.clock.now_s >= self._down_until_s:
            self._boot()
        if self._keeper is not None and self._keeper.is_over:
            self._is_doomed = True
        engines = [engine.step for engine in [*self.engines.values(), *self.ending]]
        threads = [self._keep, self._look, self._route, *engines]
        self.cluster.random.shuffle(threads)
        for thread in threads:
            if self.is_running and not self._is_doomed:
                thread()
        if self._is_doomed:
            self.die()

    def _keep(self) -> None:
        if self._keeper is not None:
            self._keeper.step()

    # What it owns: a node is the holder of its membership.

    def own(self, partition: int, epoch: int) -> None:
        """Begin with a partition."""
        self._note("takes partition", partition, "as epoch", epoch)
        self.owned[partition] = epoch
        self._outranked.pop(partition, None)
        self.cluster.owners.add(partition, epoch, self.id)
        self.cluster.num_epochs += 1
        self.cluster.bus.listen(self.number, NAMES.ingest(partition))

    def release(self, partition: int) -> None:
        """Save a partition and end it."""
        if self.owned.pop(partition, None) is None:
            return
        self._note("ends partition", partition)
        self._waiting.pop(partition, None)
        self._retries.pop(partition, None)
        self.cluster.bus.hear_no_more(self.number, NAMES.ingest(partition))
        engine = self.engines.pop(partition, None)
        if engine is not None:
            engine.stop()
            self.ending.append(engine)

    lose = release

    def note_outranked(self, partition: int, epoch: int | None) -> None:
        """Note the epoch that keeps a partition from being begun with."""
        if epoch is not None:
            self._outranked[partition] = epoch

    def outranked(self, partition: int) -> int | None:
        """Return such an epoch, None without one."""
        return self._outranked.get(partition)

    def has_ended(self, partition: int) -> bool:
        """Tell whether nothing of a partition runs any more."""
        self.ending = [engine for engine in self.ending if not engine.is_over]
        running = [*self.engines.values(), *self.ending]
        return partition not in self.owned and all(own.partition != partition for own in running)

    def _look(self) -> None:
        """Start the engines that are needed, and those again that failed."""
        now_s = self.cluster.clock.now_s
        for partition, epoch in self.owned.items():
            engine = self.engines.get(partition)
            if engine is not None and engine.is_over:
                del self.engines[partition]
                self._retries.setdefault(partition, Retry()).put_off(now_s)
            elif engine is None and now_s >= self._retries.get(partition, NO_RETRY).at_s:
                self._start(partition, epoch)
            elif engine is not None and engine.engine is not None:
                self._retries.pop(partition, None)

    def _start(self, partition: int, epoch: int) -> None:
        if partition in self._waiting or self.cluster.stream.last(log_of(partition)) > 0:
            engine = PartitionEngine(self, partition, epoch)
            for node, parcels in self._waiting.pop(partition, ()):
                engine.inbox.put(node, parcels)
            self.engines[partition] = engine

    # Messages.

    def has_lease(self) -> bool:
        """Tell whether it takes its lease for valid: it answers for what it owns then."""
        return self._keeper is not None and self._keeper.has_lease()

    def is_live(self, node: str) -> bool:
        """Tell whether a node had a lease when it was looked last."""
        return self._keeper is not None and self._keeper.is_live(node)

    def publish(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> None:
        """Send a message to those who listen.

        Raises:
            UnreachableError: If it certainly arrives nowhere.
        """
        if not self.cluster.faults.reaches_nats(self.number):
            raise UnreachableError("NATS cannot be reached")
        self.cluster.bus.publish(self.number, subject, (payload, headers))

    def deliver(self, answers: list[Answer]) -> None:
        """Take answers for the clients of this node."""
        if self._gateway is not None:
            self._gateway.deliver(answers)

    def _carry(self, partition: int, parcels: list[Parcel]) -> bool:
        """Send on what came for a partition; return False if it certainly does not arrive."""
        if partition in self.owned:
            self._put(partition, self.id, parcels)
            return True
        try:
            self.publish(NAMES.ingest(partition), pack_parcels(self.id, parcels), {})
        except UnreachableError:
            return False
        return True

    def _put(self, partition: int, node: str, parcels: list[Parcel]) -> None:
        if partition in self.engines:
            self.engines[partition].inbox.put(node, parcels)
        else:
            self._waiting[partition].append((node, parcels))

    def _route(self) -> None:
        for delivery in self.cluster.bus.receive(self.number):
            self._take(delivery)
        if self._gateway is not None:
            self._gateway.work()

    def _take(self, delivery: Delivery) -> None:
        if isinstance(delivery.message, KeyEntry):
            if self._keeper is not None:
                self._keeper.hear(delivery.message)
            return
        payload, _ = delivery.message
        if delivery.subject == self._answers:
            self.deliver(unpack_answers(payload))
        elif (partition := partition_in(delivery.subject)) in self.owned:
            self._put(partition, *unpack_parcels(payload))

    @property
    def _answers(self) -> str:
        return NAMES.answers(self.id)

    def _note(self, *what: object) -> None:
        self.cluster.note(self.id, *what)
