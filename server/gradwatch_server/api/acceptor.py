"""Accepts HTTP connections, few at a time: who is connected already is served in between.

asyncio accepts all that wait at once, and a thousand new connections then keep everybody waiting.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final

from gradwatch_server.api.connection_limits import ConnectionLimits, Held
from gradwatch_server.api.connections import Connection

ACCEPTS: Final = 2
"""Connections that are accepted in each slice of time."""

SLICE_S: Final = 0.005
"""Its length: 400 connections a second, each of which may cost 2 ms with its first request."""

ROOM_S: Final = 0.001
"""Time in which a connection that is closed for another one is gone, usually."""

_NO_FILES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts what comes to a listening socket. It belongs to the running event loop.

    Args:
        listening: The socket; it stays the caller's.
        limits: Makes room where there are as many connections as may be.
        make: Makes what serves a connection.
        tls: What TLS is spoken with, None for none.
    """

    def __init__(
        self,
        listening: socket.socket,
        limits: ConnectionLimits,
        make: Callable[[], Connection],
        tls: ssl.SSLContext | None,
    ) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._limits = limits
        self._make = make
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[None]] = set()
        self._spare: socket.socket | None = socket.socket()
        self._slice_s = 0.0  # when the slice began
        self._num_accepted = 0  # in it
        self._resuming: asyncio.TimerHandle | None = None
        self._resume()

    def _resume(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        """Accept one connection, and rest if that was the last one of its slice."""
        now_s = self._loop.time()
        if now_s - self._slice_s >= SLICE_S:
            self._slice_s, self._num_accepted = now_s, 0
        if not self._limits.make_room():
            self._rest(now_s + ROOM_S)
            return
        try:
            accepted, address = self._listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in _NO_FILES:
                raise
            if not self._limits.evict():
                self._turn_away()
            return
        self._begin(accepted, str(address[0]))
        self._num_accepted += 1
        if self._num_accepted >= ACCEPTS:
            self._rest(self._slice_s + SLICE_S)

    def _rest(self, until_s: float) -> None:
        self._loop.remove_reader(self._listening)
        self._resuming = self._loop.call_at(until_s, self._resume)

    def _begin(self, accepted: socket.socket, address: str) -> None:
        accepted.setblocking(False)
        held = self._limits.accepted(accepted, address)
        task = self._loop.create_task(self._connect(accepted, held))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    async def _connect(self, accepted: socket.socket, held: Held) -> None:
        """Let a connection be served, once TLS is agreed upon."""
        made = self._make()
        made.count_as(held)
        try:
            await self._loop.connect_accepted_socket(lambda: made, accepted, ssl=self._tls)
        except (OSError, asyncio.CancelledError):  # the other end is gone, speaks no TLS; or we end
            accepted.close()
            self._limits.lost(held)

    def _turn_away(self) -> None:
        """Accept a connection and close it: one that waits would be asked for again for ever."""
        if self._spare is not None:
            self._spare.close()
        try:
            self._listening.accept()[0].close()
            self._spare = socket.socket()
        except OSError:
            self._spare = None

    def close(self) -> None:
        """Accept nothing more."""
        self._loop.remove_reader(self._listening)
        if self._resuming is not None:
            self._resuming.cancel()
        if self._spare is not None:
            self._spare.close()
        for task in self._beginning:
            task.cancel()
