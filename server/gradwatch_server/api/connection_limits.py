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


class ConnectionLimits:
    """Limits of the connections of one event loop."""

    def __init__(self, use: BudgetUse) -> None:
        self.use = use
        self.most = min(use.limits.http_connections, max(1, most_open() // SHARE_OF_FILES))
        self.refused: Counter[str] = Counter()
        self.handshakes: set[asyncio.Task[None]] = set()


def untaken(transport: asyncio.Transport) -> int:
    """Return bytes that were sent and that the other end did not take, as far as is known.

    The process hands its bytes to the system in lumps: bytes that the system holds count too.
    """
    connected: socket.socket = transport.get_extra_info("socket")
    if connected.fileno() < 0:  # closed
        return 0
    in_system = fcntl.ioctl(connected.fileno(), termios.TIOCOUTQ, bytes(4))
    return int(transport.get_write_buffer_size()) + int(struct.unpack("i", in_system)[0])
