"""HTTP connections: uvicorn's own, which send at once and show the app their transport."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

TRANSPORT: Final = "gradwatch.transport"
"""Key in `scope["state"]` of the transport of a request's connection."""


class Connection(H11Protocol):
    """A connection whose requests know their transport: only it can end at once.

    Small answers leave at once. asyncio sees to that itself only for sockets that name TCP as their
    protocol, which those of `socket.create_server` do not: an answer in two writes then waits 40 ms
    for the reader's delayed acknowledgement.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        """Begin."""
        super().connection_made(transport)
        with contextlib.suppress(OSError):  # the other end is gone already
            connected: socket.socket = transport.get_extra_info("socket")
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.app_state = {**self.app_state, TRANSPORT: transport}
