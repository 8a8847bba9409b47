"""Alert events as they happen, as server-sent events."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query

from gradwatch_server.api.alert_stream import Wanted
from gradwatch_server.api.event_stream import EventStream, alert_lines
from gradwatch_server.api.state import Api, ApiState

router = APIRouter()

LastEventId = Annotated[
    int | None,
    Header(ge=0, lt=1 << 63, description="Cursor of the last event seen; 0 gives everything kept."),
]

Silenced = Annotated[bool, Query(description="Whether also events that a silence keeps.")]


@router.get(
    "/alerts/stream",
    response_class=EventStream,
    summary="Alert events as they happen; Last-Event-ID resumes with none missed or doubled",
)
async def stream(
    api: Api,
    run: str | None = None,
    silenced: Silenced = False,
    last_event_id: LastEventId = None,
) -> EventStream:
    return _stream(api, last_event_id, Wanted(run, silenced))


@router.get("/runs/{run}/alerts/stream", response_class=EventStream, summary="The same for one run")
async def run_stream(
    run: str,
    api: Api,
    silenced: Silenced = False,
    last_event_id: LastEventId = None,
) -> EventStream:
    api.run(run)
    return _stream(api, last_event_id, Wanted(run, silenced))


def _stream(api: ApiState, last_event_id: int | None, wanted: Wanted) -> EventStream:
    lines = alert_lines(api.alert_stream, api.published.cursor, last_event_id, wanted)
    return EventStream(lines, api.stream_limit)
