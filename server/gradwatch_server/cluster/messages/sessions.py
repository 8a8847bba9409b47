"""Where the messages of each session go that a gateway serves, and which wait for an answer.

It knows neither sockets nor clocks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MAX_SESSIONS: Final = 65_536
"""Sessions that are known; one that is forgotten for others is asked to say HELLO again."""

STALLED_S: Final = 10.0
"""Time without any acknowledgement after which a session is made to say where it is."""


@dataclass(slots=True)
class Route:
    """One session.

    Args:
        partition: That of its run.
        peer: Its connection.
        newest: Highest sequence number that was sent on.
        acked: Highest one that was acknowledged.
    """

    partition: int
    peer: bytes
    newest: int = 0
    acked: int = 0


class Sessions:
    """The sessions of one gateway, bounded: the one that was silent longest goes first."""

    def __init__(self) -> None:
        self._routes: OrderedDict[bytes, Route] = OrderedDict()
        self._behind: dict[bytes, float] = {}  # session -> since when nothing was acknowledged

    def __len__(self) -> int:
        return len(self._routes)

    def find(self, session: bytes) -> Route | None:
        """Return a session that said HELLO here."""
        return self._routes.get(session)

    def open(self, session: bytes, partition: int, peer: bytes) -> Route:
        """Note a HELLO; a session that is known keeps its partition."""
        route = self._routes.setdefault(session, Route(partition, peer))
        if len(self._routes) > MAX_SESSIONS:
            oldest, _ = self._routes.popitem(last=False)
            self._behind.pop(oldest, None)
        return route

    def note_sent(self, session: bytes, peer: bytes, seq: int, now_s: float) -> None:
        """Note a message of a session, whose number is *seq*, 0 without one."""
        route = self._routes[session]
        self._routes.move_to_end(session)
        route.peer = peer
        route.newest = max(route.newest, seq)
        if route.newest > route.acked:
            self._behind.setdefault(session, now_s)

    def note_acked(self, session: bytes, acked: int, now_s: float) -> None:
        """Note up to where a session is acknowledged."""
        route = self._routes.get(session)
        if route is None:
            return
        if acked >= route.newest:
            self._behind.pop(session, None)
        elif acked > route.acked and session in self._behind:
            self._behind[session] = now_s
        route.acked = acked

    def note_lost(self, session: bytes) -> None:
        """Note that something of a session could not be sent on."""
        if session in self._routes:
            self._behind[session] = float("-inf")

    def stalled(self, now_s: float) -> Iterator[tuple[bytes, Route]]:
        """Yield those that are to be asked where they are, each once per `STALLED_S`."""
        for session, since_s in list(self._behind.items()):
            if now_s - since_s >= STALLED_S:
                self._behind[session] = now_s
                yield session, self._routes[session]
