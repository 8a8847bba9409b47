"""How many HTTP connections may be open, and how long each may keep us waiting.

A connection is counted from when it is accepted, so that one which never ends its TLS handshake is
counted too. When there are as many as may be, the one that is idle longest is closed, by when it
was expected to ask: later of one that had an answer. One that waits for an answer goes last.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import socket
import struct
import termios
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.open_files import most_open

logger = logging.getLogger(__name__)

SHARE_OF_FILES: Final = 4
"""Connections to HTTP are at most one in so many of the files that may be open."""

LOOK_S: Final = 1.0
"""How often the connections are looked at; more often where times are shorter."""

CLOSING_S: Final = 1.0
"""Time in which a connection that was closed gives back its file, before another one has to go."""

ASKS_EVERY_S: Final = 5.0
"""Time within which a connection that had an answer is expected to be used again."""

ASKS_AFTER_S: Final = 0.5
"""Time within which a new connection is expected to ask for something."""

CHOOSE_EVERY_S: Final = 0.02
"""How often those that are idle longest are looked for: that takes a look at all of them."""


class Phase(StrEnum):
    """What a connection waits for."""

    HEADER = "header"  # the rest of a header, or the first one
    BODY = "body"  # the body of a request
    ANSWER = "answer"  # our answer
    STREAM = "stream"  # events, for as long as it likes
    IDLE = "idle"  # the next request


WAITING: Final = {Phase.HEADER: "header_s", Phase.BODY: "body_s", Phase.IDLE: "idle_s"}
"""Phases in which a caller keeps us waiting, and the budgets that say how long."""


class Limited(Protocol):
    """What the limits need of a connection."""

    @property
    def phase(self) -> Phase:
        """What it waits for."""

    def expire(self) -> None:
        """End it, for the caller took too long; say so if it asked for something."""

    def abort(self) -> None:
        """End it at once."""

    def unsent(self) -> int:
        """Return bytes of answers that the caller has not taken yet."""


def untaken(transport: asyncio.Transport) -> int:
    """Return bytes that were sent and that the other end did not take, as far as is known.

    What waits in this process goes to the system in lumps, so that what the system has counts too.
    """
    if transport.is_closing():
        return 0
    connected: socket.socket = transport.get_extra_info("socket")
    in_system = fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, bytes(4))
    return int(transport.get_write_buffer_size()) + int(struct.unpack("i", in_system)[0])


@dataclass(slots=True, eq=False)
class Held:
    """An accepted connection.

    Args:
        sock: Its socket; once closed its number is -1.
        address: Of the caller.
        since_s: When it was accepted, or had its last answer.
        phase_s: When its phase began, or the caller took part of an answer.
        connection: What serves it, once there is something.
        unsent: Bytes of answers that were not taken when it was last looked at.
        closed_s: When it was told to close.
        had_answer: Whether it had one.
    """

    sock: socket.socket
    address: str
    since_s: float
    phase_s: float
    connection: Limited | None = None
    unsent: int = 0
    closed_s: float | None = None
    had_answer: bool = False
    phase: Phase = field(init=False, default=Phase.HEADER)

    def enter(self, phase: Phase, now_s: float) -> None:
        """Note that it waits for something else, or for the next of the same."""
        if phase is Phase.IDLE:
            self.since_s, self.had_answer = now_s, True
        self.phase, self.phase_s = phase, now_s

    def idleness(self, now_s: float) -> tuple[bool, float]:
        """Return for how long it has been idle, by what is expected: the largest goes first."""
        expected_s = ASKS_EVERY_S if self.had_answer else ASKS_AFTER_S
        return self.phase is not Phase.ANSWER, (now_s - self.since_s) / expected_s

    def may_go(self) -> bool:
        """Tell whether it may be closed for another one: streams have a limit of their own."""
        return self.closed_s is None and self.phase is not Phase.STREAM

    def close(self, now_s: float, *, politely: bool = False) -> None:
        """End it."""
        self.closed_s = now_s
        if self.connection is None:
            try:
                self.sock.shutdown(socket.SHUT_RDWR)
            except OSError:  # the other end is gone already
                return
        elif politely:
            self.connection.expire()
        else:
            self.connection.abort()


class ConnectionLimits:
    """The connections of one event loop.

    Args:
        use: What may be used, and where it is noted what is.
        clock_s: The time in seconds; from when does not matter.
    """

    def __init__(self, use: BudgetUse, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.most = min(use.limits.http_connections, max(1, most_open() // SHARE_OF_FILES))
        self.refused: Counter[str] = Counter()
        self._use = use
        self._clock_s = clock_s
        self._held: dict[Held, None] = {}  # oldest first
        self._closing: Held | None = None  # for another one
        self._next_to_go: deque[tuple[tuple[bool, float], Held]] = deque()
        self._chosen_s = 0.0

    @property
    def idle_s(self) -> float:
        """Time that a connection is kept without a request, seconds."""
        return self._use.limits.idle_s

    def accepted(self, sock: socket.socket, address: str) -> Held:
        """Count a connection, until it is `lost`."""
        now_s = self._clock_s()
        held = Held(sock, address, now_s, now_s)
        self._held[held] = None
        self._note()
        return held

    def lost(self, held: Held) -> None:
        """Count a connection no more."""
        self._held.pop(held, None)
        self._note()

    def _note(self) -> None:
        self._use["http_connections"].used = len(self._held)

    def now_s(self) -> float:
        """Return the time."""
        return self._clock_s()

    def make_room(self) -> bool:
        """Tell whether there is room for one more; if not, close the one that is idle longest."""
        return len(self._held) < self.most or not self.evict()

    def evict(self) -> bool:
        """Close the connection that is idle longest; tell whether one is about to go."""
        now_s = self._clock_s()
        if self._closing in self._held and now_s - (self._closing.closed_s or 0.0) < CLOSING_S:
            return True
        self._closing = gone = self._choose(now_s)
        if gone is None:
            return False
        logger.warning(
            "%d HTTP connections are open, and may be: those idle longest are closed, "
            "the first one from %s",
            len(self._held),
            gone.address,
            extra={"peer": gone.address},
        )
        gone.close(now_s)
        self._use["http_connections"].num_evicted += 1
        return True

    def _choose(self, now_s: float) -> Held | None:
        """Return the connection that is idle longest, None if none may go."""
        if now_s - self._chosen_s >= CHOOSE_EVERY_S or not self._next_to_go:
            self._chosen_s = now_s
            idle = [(own.idleness(now_s), own) for own in self._held if own.may_go()]
            self._next_to_go = deque(sorted(idle, key=lambda pair: pair[0], reverse=True))
        while self._next_to_go:
            idleness, own = self._next_to_go.popleft()
            if own in self._held and own.may_go() and own.idleness(now_s) >= idleness:
                return own
        return None

    def look(self) -> None:
        """End those that keep us waiting for longer than they may."""
        now_s = self._clock_s()
        for held in list(self._held):
            self._check(held, now_s)

    def _check(self, held: Held, now_s: float) -> None:
        unsent = held.connection.unsent() if held.connection is not None else 0
        if unsent and unsent != held.unsent and held.phase is Phase.IDLE:
            held.phase_s = now_s  # a long answer on a slow line
        held.unsent = unsent
        budget = WAITING.get(held.phase)
        if budget is None or held.closed_s is not None:
            return
        if now_s - held.phase_s >= self._use.limit(budget):
            self._use[budget].num_refused += 1
            held.close(now_s, politely=not unsent)

    def start(self, also: Callable[[], None] = lambda: None) -> None:
        """Look at the connections from now on, in the running loop, and do something else too."""
        loop = asyncio.get_running_loop()
        every_s = min(LOOK_S, *(self._use.limit(name) / 4 for name in WAITING.values()))

        def look() -> None:
            loop.call_later(every_s, look)
            self.look()
            also()

        loop.call_later(every_s, look)
