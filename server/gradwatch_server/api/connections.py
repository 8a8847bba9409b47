"""HTTP connections: uvicorn's own, with deadlines and a limit; their answers leave at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, MutableMapping
from enum import Enum
from http import HTTPStatus
from typing import Any, ClassVar, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gradwatch_server.api.connection_limits import ConnectionLimits, untaken
from gradwatch_server.api.problems import Problem

CONNECTION: Final = "gradwatch.connection"
"""Key in `scope["state"]` of the connection that a request came on."""

MAX_EARLY_BYTES: Final = 16 << 10
"""Data of a connection that are read before its turn."""

MALFORMED: Final = "http"
"""Kind under which requests that are no HTTP are counted."""


class Wait(Enum):
    """Event that a connection waits for."""

    HEADER = "header"
    BODY = "body"
    IDLE = "idle"
    WRITE = "write"


_TOO_LATE: Final = {
    Wait.HEADER: "the header of the request did not come in time",
    Wait.BODY: "the body of the request did not come in time",
}


class HttpConnection(H11Protocol):
    """A connection with a deadline for each thing that its caller can keep waiting.

    Small answers leave at once. asyncio sees to that itself only for sockets that name TCP as their
    protocol, which those of `socket.create_server` do not: an answer in two writes then waits 40 ms
    for the reader's delayed acknowledgement.
    """

    limits: ClassVar[ConnectionLimits]
    _waiting_for: Wait | None = None
    _deadline: asyncio.TimerHandle | None = None
    _unsent = 0  # bytes that the caller had not taken at the last look
    _turn_s = 0.0  # when it may be served first
    _turn: asyncio.TimerHandle | None = None
    _has_turn = False
    _early = b""  # data that came before the turn

    @classmethod
    def under(cls, limits: ConnectionLimits) -> type[HttpConnection]:
        return type("LimitedConnection", (cls,), {"limits": limits})

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        """Begin; refuse a connection above the limit, so that those below it are served."""
        super().connection_made(transport)
        connected: socket.socket = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the other end is gone already
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.app_state = {**self.app_state, CONNECTION: self}
        self.logger = _logger_of(transport)  # type: ignore[assignment]
        if len(self.connections) > self.limits.most:
            self.logger.warning("All HTTP connections are taken: a further one is refused")
            self.limits.use["http_connections"].num_refused += 1
            self._refuse(503, f"all {self.limits.most} HTTP connections are taken; try again soon")
        self._record_count()
        caller = self.client[0] if self.client else ""
        self._turn_s = self.loop.time() + self.limits.delay_s(caller, self.loop.time())
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._record_count()
        self._wait_for(None)
        if self._turn is not None:
            self._turn.cancel()
        # Else the connection is freed only when garbage is collected.
        self.app_state = {}
        self.cycle = None  # type: ignore[assignment]  # as at its beginning

    def _record_count(self) -> None:
        self.limits.use["http_connections"].used = len(self.connections)

    def data_received(self, data: bytes) -> None:
        if self._has_turn or not self._is_early(data):
            super().data_received(data)
            self._wait()

    def _is_early(self, data: bytes) -> bool:
        """Keep data that come before the connection's turn; return False once that has come."""
        if self._turn is None:
            self._has_turn = self.loop.time() >= self._turn_s
            if self._has_turn:
                return False
            self._turn = self.loop.call_at(self._turn_s, self._begin)
        self._early += data
        if len(self._early) > MAX_EARLY_BYTES:
            self.transport.pause_reading()
        return True

    def _begin(self) -> None:
        self._has_turn = True
        if not self.transport.is_closing():
            self.transport.resume_reading()
            early, self._early = self._early, b""
            self.data_received(early)

    def on_response_complete(self) -> None:
        super().on_response_complete()  # begins with a request that waits
        self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._wait()

    # Deadlines

    def _wait(self) -> None:
        self._wait_for(self._find_wait())

    def _find_wait(self) -> Wait | None:
        """Return what the connection waits for, None for an answer of ours."""
        is_flushing = self.transport.is_closing() and self.transport.get_write_buffer_size()
        if self.flow.write_paused or is_flushing:
            return Wait.WRITE
        if self._has_body():
            return Wait.BODY
        if self.conn.their_state is not h11.IDLE:
            return None
        return Wait.HEADER if self.cycle is None or self.conn.trailing_data[0] else Wait.IDLE

    def _wait_for(self, wait: Wait | None) -> None:
        """Begin to wait for something else; a wait that goes on keeps its deadline."""
        if wait == self._waiting_for:
            return
        self._waiting_for = wait
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if wait is not None:
            self._unsent = untaken(self.transport)
            self._deadline = self.loop.call_later(self.limits.use.limits.http_wait_s, self._expire)

    def _expire(self) -> None:
        """End the connection, unless the caller of a long answer took some of it meanwhile."""
        wait, before = self._waiting_for, self._unsent
        unsent = untaken(self.transport)
        self._waiting_for = None
        if wait in (Wait.WRITE, Wait.IDLE) and 0 < unsent < before:
            self._wait_for(wait)
            return
        if wait is None:
            return
        is_begun = self._has_body() or self.conn.trailing_data[0]
        if wait is not Wait.IDLE:
            self.limits.use["http_wait_s"].num_refused += 1
        if unsent or wait is Wait.WRITE:
            self.logger.warning("The caller does not take its answer")
            self.transport.abort()  # a close would wait until the caller has read all
        elif wait in _TOO_LATE and is_begun:
            self._refuse(408, _TOO_LATE[wait])
        else:
            self.transport.close()

    def _has_body(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY

    # Answers in place of the app

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        self.limits.refused[MALFORMED] += 1
        self._refuse(400, msg)

    def _refuse(self, status: int, detail: str) -> None:
        """Answer in place of the app, and end the connection."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            problem = Problem(status, detail)
            headers = [*problem.raw_headers, (b"connection", b"close")]
            answer = h11.Response(
                status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode()
            )
            for event in (answer, h11.Data(data=bytes(problem.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


class Handshake(asyncio.Protocol):
    """A TLS handshake, before there is a connection that counts: each takes a file, too.

    Args:
        limits: As many handshakes go on at once as there may be connections.
    """

    def __init__(
        self,
        context: ssl.SSLContext,
        limits: ConnectionLimits,
        make_connection: Callable[[], asyncio.Protocol],
    ) -> None:
        self._context = context
        self._limits = limits
        self._make_connection = make_connection
        self._early = b""  # came with the end of the handshake

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as it is
        """Begin; refuse a handshake above the limit."""
        handshakes = self._limits.handshakes
        if len(handshakes) >= self._limits.most:
            _logger_of(transport).warning("All TLS handshakes are taken: a further one is refused")
            self._limits.use["http_connections"].num_refused += 1
            transport.abort()
            return
        transport.pause_reading()  # until the handshake reads
        task = asyncio.get_running_loop().create_task(self._shake(transport))
        handshakes.add(task)
        task.add_done_callback(handshakes.discard)

    def data_received(self, data: bytes) -> None:
        self._early += data

    async def _shake(self, transport: asyncio.Transport) -> None:
        loop, http_wait_s = asyncio.get_running_loop(), self._limits.use.limits.http_wait_s
        with contextlib.suppress(OSError):  # it took too long, was none, or its caller left
            encrypted = await loop.start_tls(
                transport, self, self._context, server_side=True, ssl_handshake_timeout=http_wait_s
            )
            if encrypted is None or encrypted.is_closing():
                return
            connection = self._make_connection()
            encrypted.set_protocol(connection)
            connection.connection_made(encrypted)
            if self._early:
                connection.data_received(self._early)


def _logger_of(transport: asyncio.Transport) -> _PeerLogger:
    peer = transport.get_extra_info("peername")
    address = peer[0] if peer else "an unknown address"
    return _PeerLogger(logging.getLogger("uvicorn.error"), {"peer": address})


class _PeerLogger(logging.LoggerAdapter[logging.Logger]):
    """Tells with each line whose connection it is about."""

    level = logging.INFO  # uvicorn asks for it

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        peer = (self.extra or {}).get("peer", "")
        return f"{msg} (from {peer})", {**kwargs, "extra": {"peer": peer, "kind": msg}}
