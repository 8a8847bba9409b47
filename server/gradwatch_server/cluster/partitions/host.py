"""The partitions of a node: messages reach their engines, answers their clients."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gradwatch_server.cluster.messages.gateway import BATCH_BYTES
from gradwatch_server.cluster.messages.parcels import (
    Answer,
    Assembler,
    Parcel,
    Sender,
    pack_answers,
    pack_parcels,
    unpack_answers,
    unpack_parcels,
)
from gradwatch_server.cluster.names import Names
from gradwatch_server.cluster.partitions.partition import Partition, Surroundings
from gradwatch_server.cluster.repeating import Repeating
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.errors import GradwatchError
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.message import Message
from gradwatch_server.nats.subscription import Subscription

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.5
"""How often it is looked whether an engine is to be started again."""


class Host:
    """Owns partitions as it is told, and carries messages to all that there are.

    Args:
        node: Id of this node.
        names: What subjects are called.
        connection: How other nodes are reached.
        rules: Those in force.
    """

    def __init__(self, node: str, names: Names, connection: Connection, rules: Rules) -> None:
        self._node = node
        self._names = names
        self._connection = connection
        self._rules = rules
        self._sender = Sender(node, connection.publish)
        self.num_forwarded = self.num_dropped = 0
        """Messages sent to other nodes, and those that could not be; the gateway's thread counts.
        """
        self._owned: dict[int, Partition] = {}  # replaced, never changed
        self._ending: list[Partition] = []
        self._subscriptions: dict[int, Subscription] = {}
        self._around: Surroundings | None = None
        self._looks = Repeating("host", self._look, LOOK_S)

    @property
    def owned(self) -> Mapping[int, Partition]:
        """The partitions that the node owns."""
        return self._owned

    def epoch_of(self, partition: int) -> int | None:
        """Return the epoch of a partition that is owned, None for one that is not."""
        own = self._owned.get(partition)
        return None if own is None else own.epoch

    @property
    def fault(self) -> str | None:
        """What is the matter with one of the partitions that are owned, None if nothing."""
        for number, own in self._owned.items():
            running = own.running
            fault = own.fault if running is None else running.engine.published.fault
            if fault is not None:
                return f"partition {number}: {fault}"
        return None

    def start(self, around: Surroundings) -> None:
        """Begin; partitions may be owned from now on."""
        self._around = around
        self._looks.start()

    def stop(self) -> None:
        """End what is left."""
        self._looks.stop()
        for number in list(self._owned):
            self.release(number)

    def set_rules(self, rules: Rules) -> None:
        """Put other rules in force, in all partitions."""
        self._rules = rules
        for partition in self._owned.values():
            partition.set_rules(rules)

    # Owning

    def own(self, partition: int, epoch: int) -> None:
        """Begin with a partition.

        Raises:
            NATSError: If its messages cannot be subscribed to: it is not owned then.
        """
        assert self._around is not None  # noqa: S101 - it was started
        own = Partition(partition, epoch, self._rules, self._around)
        assembler = Assembler(lambda payload: self._take_parcels(own, payload))
        self._subscriptions[partition] = self._connection.subscribe(
            self._names.ingest(partition), _adding_to(assembler)
        )
        self._owned = {**self._owned, partition: own}  # nothing is owned that hears nothing
        self._around.pool.submit(self._begin_if_used, own)

    def release(self, partition: int) -> None:
        """Save a partition and end it."""
        own = self._owned.get(partition)
        if own is None:
            return
        self._owned = {number: each for number, each in self._owned.items() if each is not own}
        self._ending.append(own)
        own.end()
        self._unsubscribe(partition)

    lose = release  # what is not its own any more can be saved no more: log and ledger refuse it

    def has_ended(self, partition: int) -> bool:
        """Tell whether nothing of a partition runs any more."""
        self._ending = [own for own in self._ending if not own.has_ended]
        return partition not in self._owned and all(own.number != partition for own in self._ending)

    def outranked(self, partition: int) -> int | None:
        """Return an epoch that keeps a partition from being begun with, None without one."""
        own = self._owned.get(partition)
        return None if own is None else own.outranked

    def note_outranked(self, partition: int, epoch: int) -> None:
        """Note that an epoch is in the way of a partition though nothing of it is begun yet."""
        if (own := self._owned.get(partition)) is not None:
            own.outranked = epoch

    def _begin_if_used(self, own: Partition) -> None:
        assert self._around is not None  # noqa: S101 - it was started
        try:
            if self._around.storage.has_entries(own.number):
                own.begin(own.acquired_s)
            own.is_empty = not own.needs_engine
        except GradwatchError as error:
            logger.warning("partition %d: %s", own.number, error)
            own.begin()  # which tries again until it can be read

    def _unsubscribe(self, partition: int) -> None:
        subscription = self._subscriptions.pop(partition, None)
        if subscription is None:
            return
        try:
            self._connection.unsubscribe(subscription)
        except GradwatchError as error:
            logger.debug("the subscription of partition %d: %s", partition, error)

    def _look(self) -> None:
        for partition in self._owned.values():
            partition.look()

    # Messages

    def carry(self, partition: int, parcels: list[Parcel]) -> bool:
        """Send on what came for a partition; return False if it certainly does not arrive."""
        own = self._owned.get(partition)
        if own is not None:
            own.put(self._node, parcels)
            return True
        try:
            payload = pack_parcels(self._node, parcels)
            self._sender.send(self._names.ingest(partition), payload)
        except GradwatchError as error:
            logger.debug("not sent on: %s", error)
            self.num_dropped += len(parcels)
            return False
        self.num_forwarded += len(parcels)
        return True

    def _take_parcels(self, own: Partition, payload: bytes) -> None:
        node, parcels = unpack_parcels(payload)
        own.put(node, parcels)


def _adding_to(assembler: Assembler) -> Callable[[Message], None]:
    def take(message: Message) -> None:
        assembler.add(message.payload, message.headers)

    return take


def answers_to(deliver: Callable[[list[Answer]], None]) -> Callable[[Message], None]:
    """Return what takes the messages on the subject of a node's answers."""
    return _adding_to(Assembler(lambda payload: deliver(unpack_answers(payload))))


@dataclass(slots=True)
class Letters:
    """Answers to one node that wait."""

    answers: list[Answer]
    num_bytes: int = 0


class AnswerPost:
    """Takes the answers of one engine to the gateways, in batches.

    Args:
        node: Id of this node.
        names: What subjects are called.
        connection: How other nodes are reached.
        deliver: Takes those to the clients of this node.
        is_live: Tells whether a node has a lease.
    """

    def __init__(
        self,
        node: str,
        names: Names,
        connection: Connection,
        deliver: Callable[[list[Answer]], None],
        is_live: Callable[[str], bool],
    ) -> None:
        self._node = node
        self._names = names
        self._sender = Sender(f"{node}-{id(self)}", connection.publish)
        self._deliver = deliver
        self.is_live = is_live
        self._waiting: defaultdict[str, Letters] = defaultdict(lambda: Letters([]))

    def post(self, node: str, answer: Answer) -> None:
        """Send an answer with the next `flush`, or before it."""
        letters = self._waiting[node]
        letters.answers.append(answer)
        letters.num_bytes += answer.num_bytes
        if letters.num_bytes >= BATCH_BYTES:
            self._send(node, self._waiting.pop(node).answers)

    def flush(self) -> None:
        """Send all that was posted."""
        while self._waiting:
            node, letters = self._waiting.popitem()
            self._send(node, letters.answers)

    def _send(self, node: str, answers: list[Answer]) -> None:
        if node == self._node:
            self._deliver(answers)
            return
        try:
            self._sender.send(self._names.answers(node), pack_answers(answers))
        except GradwatchError as error:
            logger.debug("answers are lost, and asked for again: %s", error)
