"""Number of HTTP connections, and what their callers may keep waiting."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from collections import Counter
from typing import Final

from gradwatch_server.budgets import BudgetUse
from gradwatch_server.open_files import most_open

SHARE_OF_FILES: Final = 4
"""Connections to HTTP are at most one in so many of the files that may be open."""


BURST: Final = 32
"""Connections that a caller may open at once."""

TURN_S: Final = 0.01
"""Time between two connections of a caller after those: a first request takes some ms."""

MAX_DELAY_S: Final = 5.0
MAX_CALLERS: Final = 4_096


class ConnectionLimits:
    """Limits of the connections of one event loop."""

    def __init__(self, use: BudgetUse) -> None:
        self.use = use
        self.most = min(use.limits.http_connections, max(1, most_open() // SHARE_OF_FILES))
        self.refused: Counter[str] = Counter()
        self.handshakes: set[asyncio.Task[None]] = set()
        self._turns_s: dict[str, float] = {}  # caller -> when the next turn would be

    def delay_s(self, caller: str, now_s: float) -> float:
        """Return the time until a new connection is served: a caller's connections take turns.

        Those who are connected have the loop in between.
        """
        if len(self._turns_s) >= MAX_CALLERS:
            self._turns_s = {each: turn for each, turn in self._turns_s.items() if turn > now_s}
        turn_s = max(self._turns_s.get(caller, 0.0), now_s)
        delay_s = min(max(turn_s - now_s - BURST * TURN_S, 0.0), MAX_DELAY_S)
        self._turns_s[caller] = min(turn_s, now_s + BURST * TURN_S + MAX_DELAY_S) + TURN_S
        return delay_s


def untaken(transport: asyncio.Transport) -> int:
    """Return bytes that were sent and that the other end did not take, as far as is known.

    The process hands its bytes to the system in lumps: bytes that the system holds count too.
    """
    connected: socket.socket = transport.get_extra_info("socket")
    if connected.fileno() < 0:  # closed
        return 0
    in_system = fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, bytes(4))
    return int(transport.get_write_buffer_size()) + int(struct.unpack("i", in_system)[0])
