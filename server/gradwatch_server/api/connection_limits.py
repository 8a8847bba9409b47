"""How many HTTP connections may be open, and how long each may keep us waiting.

A connection is counted from when it is accepted, so that one which never ends its TLS handshake is
counted too. When there are as many as may be, the one that has been idle longest is closed.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import socket
import struct
import termios
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.open_files import most_open

logger = logging.getLogger(__name__)

SHARE_OF_FILES: Final = 4
"""Connections to HTTP are at most one in so many of the files that may be open."""

LOOK_S: Final = 1.0
"""How often the connections are looked at; more often where times are shorter."""

CLOSING_S: Final = 1.0
"""Time in which a connection that was closed gives back its file, before another one has to go."""

_NO_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


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
    """

    sock: socket.socket
    address: str
    since_s: float
    phase_s: float
    connection: Limited | None = None
    unsent: int = 0
    closed_s: float | None = None
    phase: Phase = field(init=False, default=Phase.HEADER)

    def enter(self, phase: Phase, now_s: float) -> None:
        """Note that it waits for something else, or for the next of the same."""
        if phase is Phase.IDLE:
            self.since_s = now_s
        self.phase, self.phase_s = phase, now_s

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
        self._held: dict[int, Held] = {}  # by the number of the socket

    @property
    def idle_s(self) -> float:
        """Time that a connection is kept without a request, seconds."""
        return self._use.limits.idle_s

    def accepted(self, sock: socket.socket, address: str) -> None:
        """Count a connection."""
        now_s = self._clock_s()
        self._held[sock.fileno()] = Held(sock, address, now_s, now_s)
        self._use["http_connections"].used = len(self._held)

    def find(self, sock: Any) -> Held | None:
        """Return what is noted of a socket that is open."""
        return self._held.get(sock.fileno())

    def now_s(self) -> float:
        """Return the time."""
        return self._clock_s()

    def make_room(self) -> bool:
        """Tell whether there is room for one more; if not, close the one that is idle longest."""
        if len(self._held) < self.most:
            return True
        self._prune()
        if len(self._held) < self.most:
            return True
        return not self.evict()

    def evict(self) -> bool:
        """Close the connection that is idle longest; tell whether one is about to go."""
        now_s = self._clock_s()
        held = [own for own in self._held.values() if own.phase is not Phase.STREAM]
        if any(own.closed_s is not None and now_s - own.closed_s < CLOSING_S for own in held):
            return True
        idle = [own for own in held if own.closed_s is None]
        if not idle:
            return False
        gone = min(idle, key=lambda own: (own.phase is Phase.ANSWER, own.since_s))
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

    def look(self) -> None:
        """End those that keep us waiting for longer than they may."""
        self._prune()
        now_s = self._clock_s()
        for held in list(self._held.values()):
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

    def _prune(self) -> None:
        gone = [number for number, own in self._held.items() if own.sock.fileno() != number]
        for number in gone:
            del self._held[number]
        self._use["http_connections"].used = len(self._held)

    def start(self, also: Callable[[], None] = lambda: None) -> None:
        """Look at the connections from now on, in the running loop, and do something else too."""
        loop = asyncio.get_running_loop()
        every_s = min(LOOK_S, *(self._use.limit(name) / 4 for name in WAITING.values()))

        def look() -> None:
            loop.call_later(every_s, look)
            self.look()
            also()

        loop.call_later(every_s, look)


class Listener(socket.socket):
    """A listening socket that makes room before it accepts.

    Args:
        bound: The socket that listens; it is taken over.
        limits: What is kept to.
    """

    def __init__(self, bound: socket.socket, limits: ConnectionLimits) -> None:
        super().__init__(bound.family, bound.type, bound.proto, fileno=bound.detach())
        self._limits = limits
        self._spare: socket.socket | None = socket.socket()

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
            BlockingIOError: If there is none, or one has to be closed first.
        """
        if not self._limits.make_room():
            raise BlockingIOError
        try:
            accepted, address = super().accept()
        except OSError as error:
            if error.errno in _NO_FILES and not self._limits.evict():
                self._turn_away()
            if error.errno in _NO_FILES:
                raise BlockingIOError from error
            raise
        self._limits.accepted(accepted, str(address[0]))
        return accepted, address

    def _turn_away(self) -> None:
        """Accept a connection and close it: one that waits would be asked for again for ever."""
        if self._spare is not None:
            self._spare.close()
        try:
            super().accept()[0].close()
            self._spare = socket.socket()
        except OSError:
            self._spare = None

    def close(self) -> None:
        """Close it."""
        if self._spare is not None:
            self._spare.close()
        super().close()
