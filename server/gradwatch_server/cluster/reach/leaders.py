"""When the leader of a stream is to let another server lead.

A server that does not hear the leader wants to lead itself, and ends the time of each that it does
not hear, again and again, until one leads whom all of them hear. NATS does not see to that by
itself; so a leader that does not hear a server which is there is asked to hand over.

It has neither clock nor connection.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final

from gradwatch_server.nats.reach import Leader

TURN_S: Final = 0.2
"""How much longer each node waits than the one before it, so that one of them asks."""

AGAIN_S: Final = 3.0
"""How long it takes until a leader that was asked, and leads again or still, is asked again."""

MAX_TURNS: Final = 3
"""So many nodes may ask."""


class Handovers:
    """Which leaders do not hear whom, as one node knows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Of a stream and a server that its leader does not hear: those leaders, and from when on
        # they are to be asked.
        self._deaf: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)

    def due(
        self, leaders: Mapping[str, Leader], alive: frozenset[str], turn: int, now_s: float
    ) -> dict[str, frozenset[str]]:
        """Return the streams whose leaders are to be asked now, and whom they do not hear.

        Where two of them do not hear the same server, nobody does: it is left alone.

        Args:
            leaders: The leader of each stream.
            alive: Names of the servers that answer.
            turn: The place of this node among those that may ask, from 0.
            now_s: The time.
        """
        found = {}
        with self._lock:
            for stream, leader in leaders.items():
                self._keep(stream, leader.silent)
                unheard = leader.silent & alive
                for server in unheard:
                    self._deaf[stream, server].setdefault(leader.name, now_s)
                if any(self._is_due(stream, leader.name, own, turn, now_s) for own in unheard):
                    found[stream] = unheard
        return found

    def _is_due(self, stream: str, leader: str, server: str, turn: int, now_s: float) -> bool:
        deaf = self._deaf[stream, server]
        return len(deaf) == 1 and now_s - deaf[leader] >= turn * TURN_S

    def note_asked(self, stream: str, leader: str, unheard: Iterable[str], now_s: float) -> None:
        """Note that the leader of a stream is asked, by this node or another one; in any thread."""
        with self._lock:
            for server in unheard:
                self._deaf[stream, server][leader] = now_s + AGAIN_S

    def _keep(self, stream: str, silent: frozenset[str]) -> None:
        """Forget what was of servers that the leader of a stream hears."""
        for key in [own for own in self._deaf if own[0] == stream and own[1] not in silent]:
            del self._deaf[key]
