"""Limits how many bad messages a peer may send: a token bucket for each that sends any.

A peer that sends too many is muted for a while, and for good after it was muted several times. It
knows neither sockets nor clocks.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final

BURST: Final = 64
"""Bad messages that a peer may send at once."""

REFILL_PER_S: Final = 1.0
"""Bad messages that a peer may send for ever: a fault worth seeing, and no attack."""

TELL_EVERY_S: Final = 1.0
"""How often a peer is told what is wrong with its messages."""

MUTE_S: Final = 5.0

MAX_MUTES: Final = 3
"""Times that a peer is muted for `MUTE_S`; the next time is for good."""

MAX_PEERS: Final = 4_096
"""Peers that are remembered; the one whose last bad message is the oldest is forgotten first."""

EVERY_S: Final = 1.0

ROOMS: Final = 4
"""A peer that sends so many times its room in vain within a second floods."""


class Floods:
    """Bytes that each peer sent in vain in the newest second.

    Args:
        room_bytes: What a peer may have in the queue.
    """

    def __init__(self, room_bytes: int) -> None:
        self._most_bytes = ROOMS * room_bytes
        self._bytes: Counter[bytes] = Counter()
        self._since_s = 0.0

    def count(self, peer: bytes, num_bytes: int, now_s: float, limit: int | None = None) -> None:
        """Count what a peer sent in vain.

        Args:
            peer: The peer.
            num_bytes: Size of the message.
            now_s: The time it is, seconds.
            limit: What it was granted, if it keeps to windows: it floods with twice of that.
        """
        self.look(now_s)
        weight = 1.0 if limit is None else self._most_bytes / (2 * limit)
        self._bytes[peer] += round(num_bytes * weight)

    def look(self, now_s: float) -> None:
        """Begin anew if a second has passed."""
        if now_s - self._since_s > EVERY_S:
            self._bytes.clear()
            self._since_s = now_s

    def __contains__(self, peer: bytes) -> bool:
        """Tell whether a peer floods."""
        return self._bytes[peer] > self._most_bytes

    def __bool__(self) -> bool:
        """Tell whether any peer may flood: then the connection of each message has to be known."""
        return bool(self._bytes)

    def forget(self, peer: bytes) -> None:
        """Begin anew with a peer, whose connection was ended."""
        del self._bytes[peer]


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at_s: float
    muted_until_s: float = 0.0
    num_mutes: int = 0
    told_s: float = float("-inf")


class Throttle:
    """Counts bad messages by peer. A peer that sends none costs one lookup in a dict."""

    def __init__(self) -> None:
        self._peers: OrderedDict[bytes, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._peers)

    def is_muted(self, peer: bytes, now_s: float) -> bool:
        """Tell whether messages of *peer* are not to be read now."""
        bucket = self._peers.get(peer)
        return bucket is not None and now_s < bucket.muted_until_s

    def may_tell(self, peer: bytes, now_s: float) -> bool:
        """Tell whether a peer whose bad message was counted is to be told of it now."""
        bucket = self._peers.get(peer)
        if bucket is None or now_s - bucket.told_s < TELL_EVERY_S:
            return False
        bucket.told_s = now_s
        return True

    def count_bad(self, peer: bytes, now_s: float) -> None:
        """Count a bad message of a peer."""
        bucket = self._peers.setdefault(peer, _Bucket(BURST, now_s))
        self._peers.move_to_end(peer)
        bucket.tokens = min(BURST, bucket.tokens + (now_s - bucket.at_s) * REFILL_PER_S) - 1
        bucket.at_s = now_s
        if bucket.tokens < 0:
            bucket.tokens = BURST
            bucket.num_mutes += 1
            is_last = bucket.num_mutes > MAX_MUTES
            bucket.muted_until_s = float("inf") if is_last else now_s + MUTE_S
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
