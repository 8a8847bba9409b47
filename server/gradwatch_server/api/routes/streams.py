"""Alert events as they happen, as server-sent events."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query

from gradwatch_server.api.alert_stream import Wanted
from gradwatch_server.api.etags import boot_of
from gradwatch_server.api.event_stream import EventStream, alert_lines
from gradwatch_server.api.state import Api, ApiState
from gradwatch_server.api.ticks import event, with_ticks
from gradwatch_server.core.alerting.alert import isotime
from gradwatch_wire import __version__

router = APIRouter()

LastEventId = Annotated[
    int | None,
    Header(ge=0, lt=1 << 63, description="Cursor of the last event seen; 0 gives everything kept."),
]

WithTicks = Annotated[
    bool, Query(description="Whether also a `hello`, and a `tick` each second that runs moved in.")
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
    ticks: WithTicks = False,
    last_event_id: LastEventId = None,
) -> EventStream:
    return _stream(api, last_event_id, Wanted(run, silenced), ticks=ticks)


@router.get("/runs/{run}/alerts/stream", response_class=EventStream, summary="The same for one run")
async def run_stream(
    run: str,
    api: Api,
    silenced: Silenced = False,
    ticks: WithTicks = False,
    last_event_id: LastEventId = None,
) -> EventStream:
    api.run(run)
    return _stream(api, last_event_id, Wanted(run, silenced), ticks=ticks)


def _stream(
    api: ApiState, last_event_id: int | None, wanted: Wanted, *, ticks: bool
) -> EventStream:
    cursor = api.published.cursor
    lines = alert_lines(api.alert_stream, cursor, last_event_id, wanted)
    if ticks:
        moved = api.ticks(wanted.run)
        now = isotime(api.now_ns())
        facts = {"boot": boot_of(api), "version": __version__, "cursor": cursor, "now": now}
        lines = with_ticks(lines, event("hello", facts), moved)
    return EventStream(lines, api.stream_limit)
