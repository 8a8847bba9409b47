"""HTTP connections: uvicorn's own, which send at once and keep to the limits of connections."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import MutableMapping
from http import HTTPStatus
from typing import Any, ClassVar, Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gradwatch_server.api.connection_limits import ConnectionLimits, Held, Phase, untaken
from gradwatch_server.api.problems import Problem

CONNECTION: Final = "gradwatch.connection"
"""Key in `scope["state"]` of the connection that a request came on."""

MALFORMED: Final = "http"
"""Kind under which requests that are no HTTP are counted."""

_TOO_LATE: Final = {
    Phase.HEADER: "the header of the request did not come in time",
    Phase.BODY: "the body of the request did not come in time",
}


class Connection(H11Protocol):
    """A connection that keeps to limits, and whose requests know it: only it can end at once.

    Small answers leave at once. asyncio sees to that itself only for sockets that name TCP as their
    protocol, which those of `socket.create_server` do not: an answer in two writes then waits 40 ms
    for the reader's delayed acknowledgement.
    """

    limits: ClassVar[ConnectionLimits | None] = None
    _held: Held | None = None

    @classmethod
    def under(cls, limits: ConnectionLimits) -> type[Connection]:
        """Return the class of connections that keep to limits."""
        return type("LimitedConnection", (cls,), {"limits": limits})

    def count_as(self, held: Held) -> None:
        """Say before it begins what is noted of it."""
        self._held = held

    @property
    def phase(self) -> Phase:
        """What the connection waits for, as far as that is noted."""
        return self._held.phase if self._held is not None else Phase.ANSWER

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn does
        """Begin."""
        super().connection_made(transport)
        connected: socket.socket = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # the other end is gone already
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.app_state = {**self.app_state, CONNECTION: self}
        address = self.client[0] if self.client else "an unknown address"
        self.logger = _PeerLogger(self.logger, {"peer": address})  # type: ignore[assignment]
        if self._held is not None:
            self._held.connection = self

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        super().connection_lost(exc)
        if self._held is not None and self.limits is not None:
            self.limits.lost(self._held)
        # Else it is freed only when garbage is collected.
        self.app_state = {}
        self.cycle = None  # type: ignore[assignment]  # as at its beginning

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        if self.phase is Phase.IDLE:
            self._enter(Phase.HEADER)
        super().data_received(data)
        self._enter(self._find_phase())

    def on_response_complete(self) -> None:
        """Note that a request was answered."""
        self._enter(Phase.IDLE)
        super().on_response_complete()  # which goes on with a request that waits
        self._enter(self._find_phase())

    def begin_stream(self) -> None:
        """Note that the answer has no end."""
        self._enter(Phase.STREAM)

    def _find_phase(self) -> Phase:
        if self._has_body():
            return Phase.BODY
        if self.conn.their_state is h11.IDLE:
            is_begun = self.phase is Phase.HEADER or self.conn.trailing_data[0]
            return Phase.HEADER if is_begun else Phase.IDLE
        return Phase.STREAM if self.phase is Phase.STREAM else Phase.ANSWER

    def _enter(self, phase: Phase) -> None:
        if self._held is not None and self.limits is not None and phase is not self._held.phase:
            self._held.enter(phase, self.limits.now_s())

    def unsent(self) -> int:
        """Return bytes of answers that the caller has not taken yet."""
        return untaken(self.transport)

    def expire(self) -> None:
        """End the connection, for the caller took too long; say so if it asked for something."""
        why = _TOO_LATE.get(self.phase)
        if why is not None and (self._has_body() or self.conn.trailing_data[0]):
            self._refuse(408, why)
        else:
            self.transport.close()

    def _has_body(self) -> bool:
        return self.conn.their_state is h11.SEND_BODY

    def abort(self) -> None:
        """End the connection at once: a close would wait until the caller has read all."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP."""
        if self.limits is not None:
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


class _PeerLogger(logging.LoggerAdapter[logging.Logger]):
    """Tells with each line whose connection it is about."""

    level = logging.INFO  # uvicorn asks for it

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        peer = (self.extra or {}).get("peer", "")
        return f"{msg} (from {peer})", {**kwargs, "extra": {"peer": peer, "kind": msg}}
