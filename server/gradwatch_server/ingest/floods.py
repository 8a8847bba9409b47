"""Floods: peers that go on sending what there is no room for, which nothing but an end stops.

ZeroMQ could stop reading from a connection, but ends the whole process where that one closes before
it is read again (an assertion of libzmq 4.3.5, when a heartbeat is due). So all that comes is read,
and who sends on and on beyond its room is disconnected. A client that keeps to what WELCOME says
never is: it has one session of its own and one that it found on its disk, each sends at most what
may be in flight, and is asked to send it again once a second at most.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

EVERY_S: Final = 1.0

ROOMS: Final = 4
"""A peer that sends so many times its room in vain within a second floods."""


class Floods:
    """Who sent how much in vain, in the newest second.

    Args:
        room_bytes: What a peer may have in the queue.
    """

    def __init__(self, room_bytes: int) -> None:
        self._most_bytes = ROOMS * room_bytes
        self._bytes: Counter[bytes] = Counter()
        self._since_s = 0.0

    def count(self, peer: bytes, num_bytes: int, now_s: float) -> None:
        """Count what a peer sent in vain."""
        self.look(now_s)
        self._bytes[peer] += num_bytes

    def look(self, now_s: float) -> None:
        """Begin anew if a second has passed."""
        if now_s - self._since_s > EVERY_S:
            self._bytes.clear()
            self._since_s = now_s

    def __contains__(self, peer: bytes) -> bool:
        """Whether a peer floods."""
        return self._bytes[peer] > self._most_bytes

    def __bool__(self) -> bool:
        """Whether any peer may: whether it has to be known over which connection messages come."""
        return bool(self._bytes)

    def forget(self, peer: bytes) -> None:
        """Begin anew with a peer, whose connection was ended."""
        del self._bytes[peer]
