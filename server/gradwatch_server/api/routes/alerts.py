"""Alerts as they stand, the events that they were, and who knows of them."""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Final, Literal

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from gradwatch_server.api.alert_stream import describe_event
from gradwatch_server.api.etags import has_tag, tag_of, tagged, unchanged
from gradwatch_server.api.problems import Json
from gradwatch_server.api.state import Api, Attempt
from gradwatch_server.engine.alert_commands import Acknowledge
from gradwatch_server.storage.rows import AlertEvent
from gradwatch_wire.health import AlertState

router = APIRouter()

MAX_CURSOR: Final = (1 << 63) - 1

Cursor = Annotated[int, Query(ge=0, lt=1 << 63, description="Cursor of the last event seen.")]
Before = Annotated[int, Query(ge=1, le=MAX_CURSOR, description="Cursor; only older events.")]
Firing = Annotated[bool, Query(description="Only alerts that fire in runs that live.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Number of events.")]
Run = Annotated[str | None, Query(description="Only this run.")]
By = Annotated[str, Field(min_length=1, max_length=200, description="Name of the person.")]
Comment = Annotated[str, Field(max_length=2000, description="Why.")]


class Acknowledging(BaseModel):
    """Person who knows of an alert."""

    model_config = ConfigDict(extra="forbid")

    by: By
    comment: Comment = ""


@router.get(
    "/runs/{run}/alerts", summary="Alerts of a run as they stand, newest first", response_class=Json
)
async def run_alerts(
    run: str,
    api: Api,
    request: Request,
    attempt: Attempt = None,
    state: Annotated[AlertState | None, Query(description="Only this state.")] = None,
) -> Response:
    view = await api.run(run)
    api.check_attempt(view, attempt)
    tag = tag_of(api, view)
    if has_tag(request, tag):
        return unchanged(tag)
    # Those of all attempts, as they stand.
    wanted = [
        alert
        for alert in view.alerts
        if state in (None, alert.state) and attempt in (None, alert.attempt)
    ]
    return tagged(Json([alert.to_dict() for alert in wanted]), tag)


# No coroutine, so that it runs in a thread: reading the store may wait for the disk.
@router.get("/alerts", summary="Alert events, oldest first, by cursor")
def alerts(
    api: Api,
    after: Cursor = 0,
    run: Run = None,
    state: Annotated[
        Literal["firing", "resolved"] | None, Query(description="Only this state.")
    ] = None,
    limit: Limit = 200,
) -> Json:
    if after > api.published.cursor and after > (newest := api.alert_events.newest()):
        raise HTTPException(422, f"query after: {after} was not given out yet, newest is {newest}")
    events = api.alert_events.after(after, run, limit, state)
    return Json([describe_event(event) for event in events])


@router.get("/alerts/latest", summary="Alerts of all runs as they stand, the newest event first")
async def latest(
    api: Api,
    before: Before = MAX_CURSOR,
    run: Run = None,
    firing: Firing = False,
    limit: Limit = 200,
) -> Json:
    runs = await api.listing.all()
    phases = {summary.name: summary.phase for summary in runs}
    living = [summary.name for summary in runs if summary.firing and not summary.has_ended]
    living = [name for name in living if run in (None, name)]

    def read() -> list[AlertEvent]:
        if not firing:
            return api.alert_events.latest(before, run, limit)
        # Of all alerts that are kept few fire: those of their runs are found by themselves.
        pages = [api.alert_events.latest(before, name, limit, "firing") for name in living]
        return sorted(chain(*pages), key=lambda alert: -alert.cursor)[:limit]

    events = await run_in_threadpool(read)
    return Json([describe_event(event) | {"phase": phases.get(event.run)} for event in events])


@router.post("/alerts/{alert}/ack", summary="Acknowledge an alert that fires")
async def acknowledge(alert: str, who: Acknowledging, api: Api) -> Json:
    await api.alert(alert)  # brings its run into memory
    return Json(await api.command(Acknowledge(alert, who.by, who.comment)))
