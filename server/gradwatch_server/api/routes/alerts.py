"""Alerts as they stand, and the events that they were."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from gradwatch_server.api.event_stream import describe_event
from gradwatch_server.api.problems import Json
from gradwatch_server.api.state import Api
from gradwatch_wire.health import AlertState

router = APIRouter()

Cursor = Annotated[int, Query(ge=0, lt=1 << 63, description="Cursor of the last event seen.")]
Limit = Annotated[int, Query(ge=1, le=1000)]


@router.get("/runs/{run}/alerts", summary="Alerts of a run as they stand, newest first")
async def run_alerts(run: str, api: Api, state: AlertState | None = None) -> Json:
    alerts = api.run(run).alerts
    return Json([alert.to_dict() for alert in alerts if state in (None, alert.state)])


# No coroutine, so that it runs in a thread: reading the store may wait for the disk.
@router.get("/alerts", summary="Alert events of all runs, oldest first, by cursor")
def alerts(api: Api, after: Cursor = 0, limit: Limit = 200) -> Json:
    events = api.alert_events.after(after, most=limit)
    return Json([describe_event(event) for event in events])
