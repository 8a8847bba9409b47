"""The inbox of a partition: the real one, in simulated time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.cluster.messages.inbox import ClusterInbox
from gradwatch_server.cluster.messages.turns import Turns
from gradwatch_server.cluster.partitions.host import AnswerPost
from gradwatch_server.ingest.inbox import WORK_S
from gradwatch_server.ingest.message import Message
from gradwatch_server.nats.connection import Connection
from gradwatch_wire import Ack, Record, Welcome
from simulation.aggregator import COST_S
from simulation.invariants import InvariantChecker
from simulation.nodes.names import NAMES
from simulation.nodes.waiter import Waiter

if TYPE_CHECKING:
    from simulation.nodes.node import Node


class PartitionInbox(ClusterInbox):
    """The messages to one engine; what it promises is checked at once."""

    def __init__(self, node: Node, waiter: Waiter, invariants: InvariantChecker) -> None:
        connection = cast("Connection", node)
        post = AnswerPost(node.id, NAMES, connection, node.deliver, node.is_live)
        super().__init__("simulated", BudgetUse(), post, Turns())
        self._seconds = lambda: 0.0
        self._waiter = waiter
        self._invariants = invariants
        self._cluster = node.cluster

    def receive(
        self,
        timeout_ms: int,  # noqa: ARG002 - time passes between two batches
        work_s: float = WORK_S,  # noqa: ARG002 - of how long real writes take
    ) -> Iterator[Message]:
        """Yield what has arrived, up to a batch."""
        self._batch_messages = self._cluster.batch
        for message in super().receive(0):
            yield message
            self._waiter.point("receive")

    @property
    def has_waiting(self) -> bool:
        """Whether messages wait for their turn."""
        return bool(self._arrived) or bool(self._queue)

    def drain(self, seconds: float, stopping: threading.Event) -> None:  # noqa: ARG002 - short
        """Let others go on."""
        self._read(0)
        self._waiter.pass_by(seconds)

    def charge(self, peer: bytes, seconds: float) -> None:  # noqa: ARG002 - no clock has a say
        """Charge the same for everything."""
        super().charge(peer, COST_S)

    def reply(self, peer: bytes, session: bytes, record: Record) -> bool:
        """Send an answer."""
        self._waiter.point("reply")
        if isinstance(record, Ack | Welcome):
            self._invariants.acknowledged(session, record.acked)
        return super().reply(peer, session, record)
