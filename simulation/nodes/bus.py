"""Messages between nodes over NATS: to whoever listens just then, lost, delayed and repeated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from gradwatch_server.nats.key_value import KeyEntry
from simulation.clock import Clock
from simulation.network import Pipe
from simulation.nodes.faults import NodeFaults

REPEAT_S: Final = 5.0
"""The longest time after which a message comes again."""

MAX_WAITING: Final = 10_000

Sent: TypeAlias = tuple[bytes, Mapping[str, str]] | KeyEntry
"""A payload with its headers, or what became of a key."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as a node gets it.

    Args:
        subject: Where it was sent to.
        message: What was sent.
    """

    subject: str
    message: Sent


class Bus:
    """The messages on their way."""

    def __init__(self, clock: Clock, faults: NodeFaults) -> None:
        self._clock = clock
        self._faults = faults
        self._listeners: dict[str, set[int]] = defaultdict(set)
        self._pipes: dict[tuple[int, int], Pipe[Delivery]] = {}
        self._again: list[tuple[float, int, int, Delivery]] = []

    def listen(self, node: int, subject: str) -> None:
        """Have messages to a subject delivered to a node."""
        self._listeners[subject].add(node)

    def hear_no_more(self, node: int, subject: str = "") -> None:
        """End that, of one subject or of all; what was on its way to the node then is lost."""
        for own in [subject] if subject else list(self._listeners):
            self._listeners[own].discard(node)
        if not subject:
            for (_, receiver), pipe in self._pipes.items():
                if receiver == node:
                    pipe.clear()

    def publish(self, sender: int, subject: str, message: Sent) -> None:
        """Send a message to all who listen to its subject."""
        for receiver in sorted(self._listeners[subject]):
            faults, delivery = self._faults, Delivery(subject, message)
            if not faults.reach(sender, receiver) or faults.chance(faults.scenario.lose):
                continue
            self._put(sender, receiver, delivery)
            if faults.chance(faults.scenario.repeat):
                at_s = self._clock.now_s + faults.random.random() * REPEAT_S
                self._again.append((at_s, sender, receiver, delivery))

    def _put(self, sender: int, receiver: int, delivery: Delivery) -> None:
        faults = self._faults
        delay_s = 0.0 if faults.over else faults.random.random() * faults.scenario.delay_s
        pipe = self._pipes.setdefault((sender, receiver), Pipe(MAX_WAITING))
        pipe.put(delivery, self._clock.now_s + delay_s)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is on its way."""
        return not self._again and not any(map(len, self._pipes.values()))

    def receive(self, node: int) -> Iterator[Delivery]:
        """Yield what has arrived at a node."""
        now_s = self._clock.now_s
        due = [own for own in self._again if own[0] <= now_s]
        self._again = [own for own in self._again if own[0] > now_s]
        for _, sender, receiver, delivery in due:
            self._put(sender, receiver, delivery)
        for (_, receiver), pipe in list(self._pipes.items()):
            while receiver == node and pipe.has_arrived(now_s):
                delivery = pipe.get()
                if node in self._listeners[delivery.subject]:
                    yield delivery
