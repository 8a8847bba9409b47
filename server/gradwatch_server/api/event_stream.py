"""Server-sent events: the response, which gives up on readers who do not read."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from gradwatch_server.api.alert_stream import AlertStream, Wanted
from gradwatch_server.api.connections import CONNECTION, Connection
from gradwatch_server.api.security.access import IS_HEAD
from gradwatch_server.api.security.stream_limit import Place, StreamLimit

logger = logging.getLogger(__name__)

UNBUFFERED: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

EVICTED: Final = b": another reader got this place; resume after the last id\n\n"
"""Ends a stream that had to go."""

SEND_BUFFER_BYTES: Final = 1 << 16
"""What the system holds for a reader, about: the rest stays in the store until it is asked for."""


class EventStream(StreamingResponse):
    """Server-sent events. FastAPI's own log a traceback for each subscriber that goes away."""

    media_type = "text/event-stream"

    # FastAPI reads the status off the signature when it describes the API.
    def __init__(
        self,
        events: AsyncIterator[bytes],
        limit: StreamLimit,
        write_s: float,
        status_code: int = 200,
    ) -> None:
        super().__init__(events, status_code, headers=UNBUFFERED)
        self._limit = limit
        self._write_s = write_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream, until the end or until the place is given to another one."""
        if scope.get(IS_HEAD):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body"})
            return
        connection: Connection | None = scope.get("state", {}).get(CONNECTION)
        transport = None if connection is None else connection.transport
        if connection is not None:
            connection.begin_stream()
        caller = (scope.get("client") or ("",))[0]
        place = self._limit.acquire(caller, transport)
        reader = _Impatient(place, transport, self._write_s, send)
        try:
            async with place.hold():
                await super().__call__(scope, receive, reader.send)
        except TimeoutError:
            if not place.evicted:
                raise
            await reader.tell_evicted()
        finally:
            self._limit.release(place)


class _Impatient:
    """Sends to one reader, and ends the connection when it does not read."""

    def __init__(
        self, place: Place, transport: asyncio.Transport | None, write_s: float, send: Send
    ) -> None:
        self._place = place
        self._send = send
        self._write_s = write_s
        self._transport = transport
        self._has_begun = False
        if transport is not None:
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    async def send(self, message: Message) -> None:
        self._place.look()
        self._has_begun = True
        try:
            async with asyncio.timeout(self._write_s):
                await self._send(message)
        except TimeoutError as error:
            self._log("does not read")
            if self._transport is None:
                msg = "the reader does not read"
                raise OSError(msg) from error
            # A close would wait until the reader has read what is buffered.
            self._transport.abort()

    async def tell_evicted(self) -> None:
        """End the stream of one whose place another one got."""
        self._log("had its place for the longest time")
        if self._transport is not None and (self._place.untaken() or not self._has_begun):
            self._transport.abort()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._write_s):
                await self._send({"type": "http.response.body", "body": EVICTED})

    def _log(self, why: str) -> None:
        logger.info(
            "a reader of the alert stream, from %s, %s: its stream is ended",
            self._place.caller,
            why,
            extra={"peer": self._place.caller},
        )


async def alert_lines(
    stream: AlertStream, newest: int, last_event_id: int | None, wanted: Wanted
) -> AsyncIterator[bytes]:
    """Yield the wanted events after *last_event_id* as they are sent.

    Args:
        stream: Where they come from.
        newest: The cursor after which a stream begins that resumes none.
        last_event_id: The cursor of the last event that the subscriber has; None for a new one.
        wanted: What the subscriber wants to see.
    """
    cursor = newest if last_event_id is None else await stream.resume(last_event_id)
    # Said at once, so that a subscriber knows from when on it misses nothing.
    yield f": gradwatch alerts after {cursor}\n\n".encode()
    async for event in stream.follow(cursor, wanted):
        yield b": ping\n\n" if event is None else event.data
