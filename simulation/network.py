"""Connections that lose, delay and repeat: in order within one of them, in any order across.

A connection that breaks loses a tail of what is on it; what had arrived before stays to be read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from random import Random
from typing import Generic, TypeVar

from gradwatch_wire import Envelope

T = TypeVar("T")


class Pipe(Generic[T]):
    """One direction of a connection."""

    def __init__(self, hwm: int) -> None:
        self.swallows = False
        self._hwm = hwm
        self._queue: deque[tuple[float, T]] = deque()

    def __len__(self) -> int:
        """Messages on their way, or not read yet."""
        return len(self._queue)

    def put(self, message: T, arrives_s: float) -> bool:
        """Take a message, as a socket does: False when it takes no more for now."""
        if len(self._queue) >= self._hwm:
            return False
        if not self.swallows:
            last_s = self._queue[-1][0] if self._queue else 0.0
            self._queue.append((max(last_s, arrives_s), message))
        return True

    def has_arrived(self, now_s: float) -> bool:
        return bool(self._queue) and self._queue[0][0] <= now_s

    def get(self) -> T:
        """Read the oldest message."""
        return self._queue.popleft()[1]

    def truncate(self, random: Random) -> None:
        """Drop the newest messages, or all, or none of what is on it."""
        kept = random.randint(0, len(self._queue))
        while len(self._queue) > kept:
            self._queue.pop()

    def clear(self) -> None:
        self._queue.clear()


class Connection:
    """A worker's connection, until it breaks: both sides know it by `peer`."""

    def __init__(self, number: int, hwm: int) -> None:
        self.peer = number.to_bytes(5, "big")
        self.up: Pipe[bytes] = Pipe(hwm)
        self.down: Pipe[Envelope] = Pipe(hwm)
        self.is_open = True
        self.sent: deque[bytes] = deque(maxlen=6)
        self.breaks_s = float("inf")

    def close(self, random: Random) -> None:
        """Break: each side may still read what it has."""
        self.is_open = False
        self.up.truncate(random)
        self.down.truncate(random)


class Network:
    """All connections there are, and those that still have something to read."""

    def __init__(self, random: Random, *, hwm: int, delay_s: float, duplicate: float) -> None:
        self._random = random
        self._hwm = hwm
        self._delay_s = delay_s
        self._duplicate = duplicate
        self._num_made = 0
        self.connections: dict[bytes, Connection] = {}

    def connect(self, old: Connection | None, now_s: float) -> Connection:
        """Connect; the end of the old connection may come again on the new one."""
        self._num_made += 1
        connection = Connection(self._num_made, self._hwm)
        self.connections[connection.peer] = connection
        if old is not None and self._random.random() < self._duplicate:
            for message in old.sent:
                connection.up.put(message, self.arrival_s(now_s))
        return connection

    def arrival_s(self, now_s: float) -> float:
        return now_s + self._random.random() * self._delay_s

    def receive(self, now_s: float) -> tuple[bytes, bytes] | None:
        """Return a message that arrived at the aggregator, and its peer."""
        ready = [c for c in self.connections.values() if c.up.has_arrived(now_s)]
        if not ready:
            return None
        connection = self._random.choice(ready)
        return connection.peer, connection.up.get()

    def reply(self, peer: bytes, envelope: Envelope, now_s: float) -> bool:
        """Send to a worker; False if it is disconnected or does not read."""
        connection = self.connections.get(peer)
        if connection is None or not connection.is_open:
            return False
        return connection.down.put(envelope, self.arrival_s(now_s))

    def sweep(self) -> None:
        """Forget connections that are broken and read empty."""
        gone = [c.peer for c in self.connections.values() if not c.is_open and not c.up]
        for peer in gone:
            del self.connections[peer]

    def restart(self) -> None:
        """Disconnect the aggregator; what it had not read is lost."""
        for connection in self.connections.values():
            connection.is_open = False
            connection.up.clear()
            connection.down.truncate(self._random)
        self.connections.clear()

    def heal(self) -> None:
        """Nothing is lost, delayed or repeated from here on, on connections made from here on."""
        self._hwm, self._delay_s, self._duplicate = 100, 0.0, 0.0
        for connection in self.connections.values():
            connection.close(self._random)


class Socket:
    """A worker's end: it connects again and again, and sends only while it is connected."""

    def __init__(self, network: Network, random: Random) -> None:
        self.connection: Connection | None = None
        self.unreachable_until_s = 0.0
        self._network = network
        self._random = random

    def connect(self, now_s: float, *, reachable: bool) -> None:
        """See whether the connection is still good, and make another if it is not."""
        old = self.connection
        if old is not None and old.is_open and now_s > old.breaks_s:
            old.close(self._random)
        if reachable and now_s >= self.unreachable_until_s and not (old and old.is_open):
            self.connection = self._network.connect(old, now_s)

    def receive(self, now_s: float) -> Iterator[Envelope]:
        connection = self.connection
        while connection is not None and connection.down.has_arrived(now_s):
            yield connection.down.get()

    def send(self, message: bytes, now_s: float) -> bool:
        """Hand a message over; return False if it is not taken."""
        connection = self.connection
        if connection is None or not connection.is_open:
            return False
        if not connection.up.put(message, self._network.arrival_s(now_s)):
            return False
        connection.sent.append(message)
        return True

    def close(self) -> None:
        """Disconnect; what was sent may still arrive."""
        if self.connection is not None:
            self.connection.close(self._random)
