"""Server-sent events: the response, and the alert events in their text form."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.problems import Problem
from gradwatch_server.api.security.stream_limit import MAX_STREAMS, StreamLimit
from gradwatch_server.storage.store import AlertEvent

UNBUFFERED: Final = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class EventStream(StreamingResponse):
    """Server-sent events. FastAPI's own log a traceback for each subscriber that goes away."""

    media_type = "text/event-stream"

    # FastAPI reads the status off the signature when it describes the API.
    def __init__(
        self, events: AsyncIterator[str], limit: StreamLimit, status_code: int = 200
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
            await super().__call__(scope, receive, send)
        finally:
            self._limit.release()


def describe_event(event: AlertEvent) -> dict[str, Any]:
    """Return an alert event as the API shows it."""
    return {"cursor": event.cursor, **event.alert}


async def alert_lines(
    stream: AlertStream, newest: int, last_event_id: int | None, run: str | None
) -> AsyncIterator[str]:
    """Yield the events after *last_event_id*, of one run or all, as they are sent.

    Args:
        stream: Where they come from.
        newest: The cursor after which a stream begins that resumes none.
        last_event_id: The cursor of the last event that the subscriber has; None for a new one.
        run: Only events of this run; None for all.
    """
    cursor = newest if last_event_id is None else await stream.resume(last_event_id)
    # Said at once, so that a subscriber knows from when on it misses nothing.
    yield f": gradwatch alerts after {cursor}\n\n"
    async for event in stream.follow(cursor, run):
        if event is None:
            yield ": ping\n\n"
        else:
            yield f"id: {event.cursor}\ndata: {json.dumps(describe_event(event))}\n\n"
