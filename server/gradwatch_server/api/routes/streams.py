"""Alert events as they happen, as server-sent events, and tokens for the URL of a stream."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from typing import Annotated, Final

from fastapi import APIRouter, Header, Query
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from gradwatch_server.api.alert_stream import AlertStream, EventFilter
from gradwatch_server.api.connections import CONNECTION, HttpConnection
from gradwatch_server.api.problems import Json
from gradwatch_server.api.security.access import IS_HEAD, STREAM_TOKEN_PATH
from gradwatch_server.api.security.stream_limit import Place, StreamLimit
from gradwatch_server.api.security.stream_tokens import STREAM_TOKEN_S
from gradwatch_server.api.state import Api, ApiState

router = APIRouter()

LastEventId = Annotated[
    int | None,
    Header(ge=0, lt=1 << 63, description="Cursor of the last event seen; 0 for all that are kept."),
]

Silenced = Annotated[bool, Query(description="Whether silenced alerts are in it.")]

logger = logging.getLogger(__name__)

UNBUFFERED: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

EVICTED: Final = b": another reader got this place; resume after the last id\n\n"
"""Ends a stream that had to go."""

SEND_BUFFER_BYTES: Final = 1 << 16
"""About the bytes that the system holds for a reader: the rest waits in the store."""


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
        """Stream, until the end or until the place is given to another one."""
        if scope.get(IS_HEAD):
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body"})
            return
        connection: HttpConnection | None = scope.get("state", {}).get(CONNECTION)
        transport = None if connection is None else connection.transport
        if transport is not None:
            sock = transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        place = self._limit.acquire((scope.get("client") or ("",))[0], transport)
        has_begun = False

        async def look_and_send(message: Message) -> None:
            nonlocal has_begun
            place.measure()
            has_begun = True
            await send(message)

        try:
            async with place.hold():
                await super().__call__(scope, receive, look_and_send)
        except TimeoutError:
            if not place.evicted:
                raise
            await _tell_evicted(place, transport, send, has_begun=has_begun)
        finally:
            self._limit.release(place)


async def _tell_evicted(
    place: Place, transport: asyncio.Transport | None, send: Send, *, has_begun: bool
) -> None:
    """End the stream of a reader whose place another one got."""
    logger.info(
        "a reader of the alert stream, from %s, had its place for the longest time: "
        "its stream is ended",
        place.caller,
        extra={"peer": place.caller},
    )
    if transport is not None and (place.untaken() or not has_begun):
        transport.abort()  # a close would wait until the reader has read what is buffered
    else:
        await send({"type": "http.response.body", "body": EVICTED})


async def alert_lines(
    stream: AlertStream, newest: int, last_event_id: int | None, wanted: EventFilter
) -> AsyncIterator[bytes]:
    """Yield the wanted events after *last_event_id* as they are sent.

    Args:
        last_event_id: The cursor of the last event that the subscriber has; None for a new one.
    """
    cursor = newest if last_event_id is None else await stream.resume(last_event_id)
    # Said at once, so that a subscriber knows from when on it misses nothing.
    yield f": gradwatch alerts after {cursor}\n\n".encode()
    async for event in stream.follow(cursor, wanted):
        yield b": ping\n\n" if event is None else event.data


@router.get(
    "/alerts/stream", response_class=EventStream, summary="Alert events as they happen, server-sent"
)
async def stream(
    api: Api,
    run: Annotated[str | None, Query(description="Only this run.")] = None,
    silenced: Silenced = False,
    last_event_id: LastEventId = None,
) -> EventStream:
    return _stream(api, last_event_id, EventFilter(run, silenced))


@router.get(
    "/runs/{run}/alerts/stream",
    response_class=EventStream,
    summary="Alert events of one run, server-sent",
)
async def run_stream(
    run: str, api: Api, silenced: Silenced = False, last_event_id: LastEventId = None
) -> EventStream:
    api.check_run(run)
    return _stream(api, last_event_id, EventFilter(run, silenced))


def _stream(api: ApiState, last_event_id: int | None, wanted: EventFilter) -> EventStream:
    lines = alert_lines(api.alert_stream, api.published.cursor, last_event_id, wanted)
    return EventStream(lines, api.stream_limit)


@router.post(STREAM_TOKEN_PATH, summary="Token for the URL of a stream, good for 60 s")
async def stream_token(api: Api) -> Json:
    return Json({"token": api.stream_tokens.issue(), "expires_in_s": STREAM_TOKEN_S})
