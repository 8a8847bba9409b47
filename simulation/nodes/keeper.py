"""The membership of a node: the real one, in simulated time."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from gradwatch_server.cluster.ownership.membership import Membership
from gradwatch_server.cluster.ownership.node_record import NodeRecord
from gradwatch_server.nats.errors import NATSError
from gradwatch_server.nats.key_value import KeyEntry, KeyValue
from simulation.nodes.key_value import Bucket, SimulatedKeyValue
from simulation.nodes.task import Task
from simulation.nodes.waiter import WaitedEvent, Waiter

if TYPE_CHECKING:
    from simulation.nodes.node import Node


class SimulatedMembership(Membership):
    """Notes what a look at the cluster fails with, if it is not NATS."""

    failure: Exception | None = None

    def _round(self) -> None:
        try:
            super()._round()
        except NATSError:
            raise
        except Exception as error:
            self.failure = error
            raise


class Keeper:
    """Keeps the lease of one start of a node."""

    def __init__(self, node: Node) -> None:
        cluster = node.cluster
        self._node = node
        self._owners = self._reach(cluster.owners_bucket)
        self._membership = SimulatedMembership(
            NodeRecord(node.id, "0", "", ""),
            cast("KeyValue", self._reach(cluster.nodes_bucket)),
            cast("KeyValue", self._owners),
            cluster.scenario.partitions,
            cluster.scenario.lease_s,
            node,
        )
        self._task = Task(self._membership._run)
        self._membership._asked = WaitedEvent(self._task.wait, self._now_s)

    def _reach(self, bucket: Bucket) -> SimulatedKeyValue:
        cluster = self._node.cluster
        waiter = Waiter(self._pass_by, self._point)
        return SimulatedKeyValue(bucket, self._node.number, cluster.faults, cluster.bus, waiter)

    def _now_s(self) -> float:
        return self._node.cluster.clock.now_s

    def _pass_by(self, seconds: float) -> None:
        until_s = self._now_s() + seconds
        while self._now_s() < until_s:
            self._task.wait()

    def _point(self, where: str) -> None:
        if self._node.befalls(where):
            self._task.wait()

    @property
    def is_over(self) -> bool:
        """Whether the node has left."""
        return self._task.is_over

    def step(self) -> None:
        """Let it go on until it waits."""
        self._task.resume()
        if self._membership.failure is not None:
            raise self._membership.failure

    def hear(self, entry: KeyEntry) -> None:
        """Take an owner record that another node says it wrote."""
        self._owners.hear(entry)

    def has_lease(self) -> bool:
        """Tell whether the node takes its lease for valid."""
        return self._membership.has_lease()

    def is_live(self, node: str) -> bool:
        """Tell whether a node had a lease when it was looked last."""
        return self._membership.is_live(node)

    def stop(self) -> None:
        """Have it give up all that is owned, and end."""
        self._membership.stop()

    def kill(self) -> None:
        """End it where it is."""
        self._task.kill()
