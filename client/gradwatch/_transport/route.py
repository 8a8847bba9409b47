"""The endpoint in use, the time for the next one, and the reason why nobody answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from gradwatch._faults import Faults
from gradwatch_wire import ProtocolError
from gradwatch_wire.session.peer import Peer, Speaks, look_at
from gradwatch_wire.session.timing import BEAT_EVERY_S, CLOSE_S

SILENT_AFTER_S: Final = 3 * BEAT_EVERY_S
"""An aggregator answers each beat: after three without an answer it counts as silent."""

UNCONNECTED_AFTER_S: Final = 1.0
"""Limit of an endpoint that takes no connection, where there are others."""

LOOK_AFTER_S: Final = 3.0
"""Seconds without a connection after which the client checks what listens there."""

LAST_LOOK_S: Final = 0.5
"""Seconds after which no further endpoint is looked at while the session closes."""

_HINT: Final = (
    "set attach(endpoint=...) or GRADWATCH_ENDPOINT to where gradwatch serve takes records"
)


class Route:
    """Goes from an endpoint that does not answer to the next one, and after the last to the first.

    It has neither socket nor clock.

    Args:
        faults: Where the user is told what is wrong, and once that records go to another endpoint.
    """

    def __init__(
        self, endpoints: Sequence[str], now_s: float, *, has_key: bool, faults: Faults
    ) -> None:
        self.num_moves = 0
        self._endpoints = list(endpoints)  # the one in use first
        self._answering = endpoints[0]  # the last one that answered
        self._has_key = has_key
        self._faults = faults
        self._since_s = now_s  # the last answer, or the beginning at this endpoint
        self._quiet_s = now_s  # the last answer, or the beginning
        self._answered_s: float | None = None
        self._babble = ""
        self._peers: dict[str, Peer] = {}  # what listens where, in this outage
        self._is_connected = False

    @property
    def endpoint(self) -> str:
        return self._endpoints[0]

    @property
    def others(self) -> list[str]:
        """The other endpoints, the next one first."""
        return self._endpoints[1:]

    def answered(self, now_s: float) -> None:
        if self.endpoint != self._answering:
            where = f"{self._answering} did not answer in time; records go to {self.endpoint}"
            self._faults.tell_once("moved", where)
            self._answering = self.endpoint
        self._answered_s = self._since_s = self._quiet_s = now_s
        self._peers.clear()

    def babbled(self, error: ProtocolError) -> None:
        """Note an answer that is none of an aggregator."""
        self._babble = str(error)
        self._faults.note("answer not understood", error)

    def is_to_leave(self, now_s: float, *, is_connected: bool) -> bool:
        """Tell whether it is time for another connection; asked in each round.

        One endpoint alone is connected to anew, as ZeroMQ gives up after some failed handshakes.
        """
        self._is_connected = is_connected
        if is_connected and not self.others:
            return False
        is_quick = bool(self.others) and not is_connected
        return now_s - self._since_s > (UNCONNECTED_AFTER_S if is_quick else SILENT_AFTER_S)

    def moved(self, now_s: float) -> None:
        """Note that the next endpoint is in use."""
        self._endpoints.append(self._endpoints.pop(0))
        self.num_moves += bool(self.others)
        self.stay(now_s)

    def stay(self, now_s: float) -> None:
        self._since_s = now_s

    def is_quiet(self, now_s: float) -> bool:
        """Tell whether nobody has answered for a while."""
        return now_s - self._quiet_s > LOOK_AFTER_S

    def look(self, now_s: float) -> None:
        """Look, once in each outage, at what takes no connection; tell what is certainly wrong."""
        if self.is_quiet(now_s) and self.endpoint not in self._peers and not self._is_connected:
            peer = self._peers[self.endpoint] = look_at(self.endpoint)
            if why := self._certain(peer):
                self._faults.note("no answer", f"{self.endpoint}: {why}")

    def look_at_last(self, now_s: Callable[[], float]) -> None:
        """Look at those that never answered, for `describe`, one after another for a while."""
        began_s = now_s()
        for endpoint in self._endpoints:
            if endpoint not in self._peers and now_s() - began_s < LAST_LOOK_S:
                self._peers[endpoint] = look_at(endpoint)

    def describe(self, now_s: float) -> str:
        """Say why records are left."""
        ago_s = None if self._answered_s is None else now_s - self._answered_s
        if ago_s is not None and ago_s < CLOSE_S:  # while it closed
            how = f"had not stored them in the {CLOSE_S:g} s that close() waits"
            return f"the aggregator answered {ago_s:.1f} s ago, but {how}"
        if why := self._describe_certain():
            return why
        if ago_s is not None:
            return f"the aggregator stopped answering {ago_s:.0f} s ago"
        if self._babble:
            return f"what answers there is no aggregator ({self._babble}); {_HINT}"
        peers = self._peers.values()
        if peer := next((peer for peer in peers if peer.speaks is not Speaks.NOTHING), None):
            return f"{peer.what} listens there, it hangs, or is no aggregator; {_HINT}"
        return (
            "no aggregator answered; start one there (gradwatch serve), or set "
            "attach(endpoint=...) or GRADWATCH_ENDPOINT"
        )

    def _describe_certain(self) -> str:
        """Return what is certainly wrong; of several endpoints, with the one where it is."""
        for endpoint, peer in self._peers.items():
            is_connected = self._is_connected and endpoint == self.endpoint
            if not is_connected and (why := self._certain(peer)):
                return f"at {endpoint} {why}" if self.others else why
        return ""

    def _certain(self, peer: Peer) -> str:
        """Return what is wrong with the one that listens, empty if it may be an aggregator."""
        if peer.speaks is Speaks.CURVE:
            key = "this process's is not known there" if self._has_key else "this process has none"
            return f"the aggregator asks for another key (GRADWATCH_KEYS); {key}"
        if peer.speaks is Speaks.ROUTER and self._has_key:
            what = "leave keys= and GRADWATCH_KEYS out, or give it --keys-dir"
            return f"the aggregator does not ask for keys; {what}"
        if peer.speaks in {Speaks.HTTP, Speaks.ZEROMQ, Speaks.OTHER}:
            return f"{peer.what} listens there, that is no aggregator; {_HINT}"
        return ""
