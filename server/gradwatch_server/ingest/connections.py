"""Connections to the ingest port: no new ones while there are too many, an end of dead ones.

ZeroMQ accepts whoever comes, and would cut all connections with the port. So at the limit the
kernel is told to drop what asks for a new one, as if nobody were there; those that are connected go
on, and who is not tries again.

Clients send a heartbeat every 2 s. ZeroMQ heeds its TTL only until the next message of the client,
so that the connection of a client that is stopped would mostly stay for ever. The kernel knows when
data came last. Without Linux connections are only counted.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import struct
import sys
import time
from contextlib import suppress
from typing import Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from gradwatch_server.open_files import most_open
from gradwatch_wire.session.timing import SILENCE_S

logger = logging.getLogger(__name__)

ENDPOINT: Final = "inproc://gradwatch-connections"
EVENTS: Final = zmq.EVENT_LISTENING | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
LOOK_EVERY_S: Final = 0.1
MAX_EVENTS: Final = 4_096
"""Events taken in at once."""

CLOSED_S: Final = 1.0
"""Least time for which the port stays closed."""

SO_ATTACH_FILTER: Final = 26
SO_DETACH_FILTER: Final = 27
_DROP: Final = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A program of the kernel's packet filter: return 0, which drops all."""

_RESET: Final = struct.pack("ii", 1, 0)
"""For SO_LINGER: to close is to reset."""

SWEEP_S: Final = 3.0
"""Time in which each connection is asked once when data came last."""

SWEEP_LOOKS: Final = 24
"""Looks among which that is divided."""

_LAST_DATA: Final = struct.Struct("52x I")
"""`tcpi_last_data_recv` of `struct tcp_info` in linux/tcp.h: milliseconds since data came."""

SHARE_OPEN: Final = 7 / 8
"""The port is opened again below this part of the limit."""


class Connections:
    """Counts the connections of a socket that listens; closes its port while there are too many.

    Args:
        listener: The socket; the thread that uses it calls `check`.
        most: Connections that there may be; never more than half of the files that may be open.
    """

    def __init__(
        self, listener: zmq.Socket[bytes], context: zmq.Context[zmq.Socket[bytes]], limit: int
    ) -> None:
        self.num_closed = 0
        """Times that the port was closed."""
        self.most = min(limit, most_open() // 2)
        self._listener = listener
        self._port: socket.socket | None = None  # the one that listens
        self._files: set[int] = set()
        self._unswept: list[int] = []
        self._swept_s = 0.0
        self._looked_s = 0.0
        self._closed_s: float | None = None
        # Unbounded: ZeroMQ's own thread would wait if nobody took the events.
        self._events = context.socket(zmq.PAIR)
        self._events.linger = 0
        self._events.rcvhwm = 0
        listener.monitor(ENDPOINT, EVENTS)
        self._events.connect(ENDPOINT)

    @property
    def num_open(self) -> int:
        return len(self._files)

    def check(self) -> None:
        """Count what came and went, and close or open the port."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_EVERY_S:
            return
        self._looked_s = now_s
        self._count()
        if self._unswept or now_s - self._swept_s > SWEEP_S:
            self._end_silent(now_s)
        if self._closed_s is None:
            if len(self._files) >= self.most:
                self._close_port(now_s)  # what it has accepted meanwhile stays
        elif now_s - self._closed_s > CLOSED_S and len(self._files) < SHARE_OPEN * self.most:
            self._open_port()

    def cut(self, number: int) -> None:
        """End the connection of that file, if it is one, with a reset.

        A peer that waits for room in the receiver's window would not hear of any other end.
        """
        if number in self._files:
            with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                connection.shutdown(socket.SHUT_RDWR)

    def _end_silent(self, now_s: float) -> None:
        """End connections over which nothing came for long, of some of all at each look."""
        if not self._unswept:
            self._swept_s = now_s
            self._unswept = list(self._files) if sys.platform == "linux" else []
        count = 1 + len(self._files) // SWEEP_LOOKS
        for number in self._unswept[:count]:
            if _silence_s(number) > SILENCE_S:
                self.cut(number)
        del self._unswept[:count]

    def _count(self) -> None:
        for _ in range(MAX_EVENTS):
            try:
                event = parse_monitor_message(self._events.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            if event["event"] == zmq.EVENT_LISTENING:
                self._listen(event["value"])
            elif event["event"] == zmq.EVENT_ACCEPTED:
                self._files.add(event["value"])
            else:
                self._files.discard(event["value"])

    def _listen(self, number: int) -> None:
        """Take hold of the socket that listens, where it can be told to drop something."""
        if sys.platform == "linux":
            self._port = socket.socket(fileno=os.dup(number))

    def _close_port(self, now_s: float) -> None:
        if not self.num_closed:
            text = "%d connections to the ingest port: no new one for a while (told once)"
            logger.warning(text, len(self._files))
        self.num_closed += 1
        self._closed_s = now_s
        if self._port is not None:
            program = ctypes.create_string_buffer(_DROP)
            whole = struct.pack("HP", 1, ctypes.addressof(program))
            with suppress(OSError):  # a socket file has no packets
                self._port.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, whole)

    def _open_port(self) -> None:
        self._closed_s = None
        if self._port is not None:
            with suppress(OSError):
                self._port.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)

    def close(self) -> None:
        """Count no more."""
        if not self._listener.closed:
            self._listener.disable_monitor()
        self._events.close(linger=0)
        if self._port is not None:
            self._port.close()


def _silence_s(number: int) -> float:
    """Return the time since data came over a connection, 0 if that is not known."""
    try:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=number)
    except OSError:
        return 0.0
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_DATA.size)
        return float(_LAST_DATA.unpack(info)[0]) / 1e3
    except (OSError, struct.error):  # it has gone, or is a socket file
        return 0.0
    finally:
        connection.detach()
