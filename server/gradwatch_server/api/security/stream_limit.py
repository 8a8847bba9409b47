"""Limit of alert streams that are open at once: each holds a connection for as long as it likes.

When all places are taken, the newcomer gets that of the reader who took nothing for the longest
time, among the streams of the address that has most.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from gradwatch_server.api.connection_limits import untaken
from gradwatch_server.budgets import BudgetUse

SHARE_OF_CONNECTIONS: Final = 0.5
"""Streams are at most so many of the connections, so that others can still ask."""


class Place:
    """One open stream.

    Args:
        transport: Of its connection, None if it has none of ours.
    """

    def __init__(
        self, caller: str, transport: asyncio.Transport | None, clock_s: Callable[[], float]
    ) -> None:
        self.caller = caller
        self.evicted = False
        self._transport = transport
        self._clock_s = clock_s
        self._taken_s = clock_s()
        self._scope: asyncio.Timeout | None = None

    def hold(self) -> asyncio.Timeout:
        """Return the scope in which the stream runs: it times out when the place is lost."""
        self._scope = asyncio.timeout(None)
        return self._scope

    def untaken(self) -> int:
        """Return bytes that were sent and not taken, as far as the system knows."""
        return 0 if self._transport is None else untaken(self._transport)

    def measure(self) -> None:
        """Note before something is sent whether all that was sent before is taken."""
        if not self.untaken():
            self._taken_s = self._clock_s()

    def idle_s(self) -> float:
        """Return for how long the reader has taken nothing of what waits for him."""
        return self._clock_s() - self._taken_s if self.untaken() else 0.0

    def evict(self) -> None:
        self.evicted = True
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())


class StreamLimit:
    """The open streams, of one event loop.

    Args:
        use: Budgets, and the counters of their use.
    """

    def __init__(
        self,
        use: BudgetUse,
        num_connections: int | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._use = use
        self._clock_s = clock_s
        self._places: list[Place] = []  # oldest first
        connections = num_connections or use.limits.http_connections
        self.most = max(1, int(connections * SHARE_OF_CONNECTIONS))

    def acquire(self, caller: str, transport: asyncio.Transport | None = None) -> Place:
        """Return a place for a stream; if there is none left, another one loses his."""
        of = Counter(place.caller for place in self._places)
        if of[caller] >= min(self._use.limits.streams_per_caller, self.most):
            self._evict(caller, "streams_per_caller")
        elif len(self._places) >= self.most:
            self._evict(of.most_common(1)[0][0], "http_connections")
        place = Place(caller, transport, self._clock_s)
        self._places.append(place)
        self._note()
        return place

    def release(self, place: Place) -> None:
        """Give a place back, once."""
        if place in self._places:
            self._places.remove(place)
            self._note()

    def _evict(self, caller: str, budget: str) -> None:
        places = [place for place in self._places if place.caller == caller]
        gone = max(places, key=Place.idle_s)  # the oldest of those who took all
        self._places.remove(gone)
        gone.evict()
        self._use[budget].num_evicted += 1

    def _note(self) -> None:
        of = Counter(place.caller for place in self._places)
        self._use["streams_per_caller"].used = max(of.values(), default=0)
