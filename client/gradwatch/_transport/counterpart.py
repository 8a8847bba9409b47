"""The other side as the sender knows it: an aggregator that answers, or what it is instead."""

from __future__ import annotations

from typing import Final

from gradwatch._faults import Faults
from gradwatch._transport.handshakes import Doubt, Handshakes
from gradwatch_wire import ProtocolError
from gradwatch_wire.session.peer import Peer, Speaks, look_at
from gradwatch_wire.session.timing import CLOSE_S

LOOK_EVERY_S: Final = 30.0
"""How often what does not answer is looked at, until it is known what it is."""

_HINT: Final = (
    "set attach(endpoint=...) or GRADWATCH_ENDPOINT to where gradwatch serve takes records"
)


class Counterpart:
    """Tells once what is wrong with it, and says at the end why records are left.

    Args:
        endpoint: Where it listens.
        has_key: Whether this process has a key for it.
        faults: Where it is told.

    Attributes:
        endpoint: As given.
    """

    def __init__(self, endpoint: str, *, has_key: bool, faults: Faults) -> None:
        self.endpoint = endpoint
        self._has_key = has_key
        self._faults = faults
        self._answered_s: float | None = None
        self._babble = ""
        self._peer: Peer | None = None
        self._is_known = False
        self._looked_s = float("-inf")
        self._is_connected = False
        self._has_shaken_hands = False

    def answered(self, now_s: float) -> None:
        """Note an answer as an aggregator's."""
        self._answered_s = now_s

    def babbled(self, error: ProtocolError) -> None:
        """Note an answer that is none."""
        self._babble = str(error)
        self._faults.note("answer not understood", error)

    def check(self, handshakes: Handshakes, now_s: float, *, is_last: bool = False) -> None:
        """Look at what is there if it is doubtful, and tell it; *is_last*: for `describe`."""
        doubt = handshakes.check(now_s)
        self._is_connected = handshakes.is_connected
        self._has_shaken_hands = handshakes.has_succeeded
        if is_last and doubt is None and self._is_connected and not self._has_shaken_hands:
            doubt = Doubt.SILENT
        is_time = is_last or now_s - self._looked_s > LOOK_EVERY_S
        if doubt is None or self._is_known or not is_time:
            return
        self._looked_s = now_s
        self._peer = look_at(self.endpoint)
        if not is_last:  # the end has a line of its own
            self._tell(self._peer, doubt)

    def silent_s(self, now_s: float) -> float | None:
        """Return how long ago it answered, s; None if it never did."""
        return None if self._answered_s is None else max(0.0, now_s - self._answered_s)

    def describe(self, now_s: float) -> str:
        """Say why records are left."""
        ago_s = self.silent_s(now_s)
        if ago_s is not None:
            if ago_s < CLOSE_S:  # while it closed
                how = f"had not stored them in the {CLOSE_S:g} s that close() waits"
                return f"the aggregator answered {ago_s:.1f} s ago, but {how}"
            return f"the aggregator stopped answering {ago_s:.0f} s ago"
        if self._babble:
            return f"what answers there is no aggregator ({self._babble}); {_HINT}"
        if self._peer is not None and self._peer.speaks is Speaks.CURVE:
            return "the aggregator asks for another key (GRADWATCH_KEYS)"
        if self._has_shaken_hands:
            return f"a ZeroMQ socket there does not answer: it hangs, or is no aggregator; {_HINT}"
        if self._is_connected and self._peer is not None:
            is_silent = self._peer.speaks in {Speaks.SILENCE, Speaks.ROUTER}
            which = "it hangs, or is no aggregator" if is_silent else "that is no aggregator"
            return f"{self._peer.what} listens there, {which}; {_HINT}"
        return (
            "no aggregator answered; start one there (gradwatch serve), or set "
            "attach(endpoint=...) or GRADWATCH_ENDPOINT"
        )

    def _tell(self, peer: Peer, doubt: Doubt) -> None:
        """Tell what is certain; a peer that only hangs may be an aggregator after all."""
        is_cut = doubt is Doubt.CUT
        if peer.speaks is Speaks.CURVE and (is_cut or not self._has_key):
            self._note("not let in", self._whose_key())
        elif peer.speaks is Speaks.ROUTER and is_cut and self._has_key:
            why = "does not ask for keys; leave keys= and GRADWATCH_KEYS out, or give it --keys-dir"
            self._note("not let in", f"the aggregator at {self.endpoint} {why}")
        elif peer.speaks in {Speaks.HTTP, Speaks.ZEROMQ, Speaks.OTHER}:
            self._note("no aggregator", f"at {self.endpoint} listens {peer.what}; {_HINT}")

    def _note(self, what: str, why: str) -> None:
        self._is_known = True
        self._faults.note(what, why)

    def _whose_key(self) -> str:
        key = "this process's is not known there" if self._has_key else "this process has none"
        return f"the aggregator at {self.endpoint} asks for another key (GRADWATCH_KEYS); {key}"
