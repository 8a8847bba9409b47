"""Patience with a peer that sends nonsense: some is nothing, much is silence, more is the end.

It knows neither sockets nor clocks.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

BURST: Final = 64
"""Bad messages that a peer may send at once."""

REFILL_PER_S: Final = 1.0
"""A bad message now and then, for ever, is a fault worth seeing and no attack."""

MUTE_S: Final = 5.0
MUTES: Final = 3
"""Times that a peer is not listened to for a while before it never is again."""

MAX_PEERS: Final = 4_096
"""Peers that are remembered; the one that was bad the longest ago is forgotten first."""


@dataclass(slots=True)
class _Record:
    tokens: float
    at_s: float
    muted_until_s: float = 0.0
    num_mutes: int = 0


class Throttle:
    """Counts bad messages by peer. A peer that sends none costs one look into a dict."""

    def __init__(self) -> None:
        self._peers: OrderedDict[bytes, _Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._peers)

    def is_muted(self, peer: bytes, now_s: float) -> bool:
        """Tell whether what *peer* says is not to be read now."""
        record = self._peers.get(peer)
        return record is not None and now_s < record.muted_until_s

    def strike(self, peer: bytes, now_s: float) -> None:
        """Count a bad message of a peer."""
        record = self._peers.setdefault(peer, _Record(BURST, now_s))
        self._peers.move_to_end(peer)
        record.tokens = min(BURST, record.tokens + (now_s - record.at_s) * REFILL_PER_S) - 1
        record.at_s = now_s
        if record.tokens < 0:
            record.tokens = BURST
            record.num_mutes += 1
            is_last = record.num_mutes > MUTES
            record.muted_until_s = float("inf") if is_last else now_s + MUTE_S
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
