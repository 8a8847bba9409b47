"""Server-sent events: the response, which gives up on readers who do not read."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from gradwatch_server.api.alert_stream import AlertStream, Wanted
from gradwatch_server.api.connections import TRANSPORT
from gradwatch_server.api.problems import Problem
from gradwatch_server.api.security.stream_limit import MAX_STREAMS, StreamLimit

logger = logging.getLogger(__name__)

UNBUFFERED: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

WRITE_TIMEOUT_S: Final = 30.0
"""Time in which a reader has to make room for the next message, or its connection is ended."""

SEND_BUFFER_BYTES: Final = 1 << 16
"""What the system holds for a reader, about: the rest stays in the store until it is asked for."""


class EventStream(StreamingResponse):
    """Server-sent events. FastAPI's own log a traceback for each subscriber that goes away."""

    media_type = "text/event-stream"

    # FastAPI reads the status off the signature when it describes the API.
    def __init__(
        self, events: AsyncIterator[bytes], limit: StreamLimit, status_code: int = 200
    ) -> None:
        super().__init__(events, status_code, headers=UNBUFFERED)
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream, unless too many do already."""
        if not self._limit.acquire():
            problem = Problem(503, f"all {MAX_STREAMS} alert streams are taken")
            await problem(scope, receive, send)
            return
        try:
            await super().__call__(scope, receive, _Impatient(scope, send).send)
        finally:
            self._limit.release()


class _Impatient:
    """Sends to one reader, and ends the connection when it does not read."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._send = send
        self._transport: asyncio.Transport | None = scope.get("state", {}).get(TRANSPORT)
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    async def send(self, message: Message) -> None:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._send(message)
        except TimeoutError as error:
            logger.info("a reader of the alert stream does not read: its connection is ended")
            if self._transport is None:
                msg = "the reader does not read"
                raise OSError(msg) from error
            # A close would wait until the reader has read what is buffered.
            self._transport.abort()


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
