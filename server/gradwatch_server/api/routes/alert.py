"""One alert: where it began, the steps around that, and what has become of it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException

from gradwatch_server.api.alert_details import add_steps, describe_events, find_alert
from gradwatch_server.api.problems import Json
from gradwatch_server.api.routes.silences import describe
from gradwatch_server.api.state import Api, ApiState
from gradwatch_server.core.alerting.silences import fits

router = APIRouter()


@router.get("/alerts/{alert}", summary="One alert, with the steps around it and its events")
async def alert_(alert: str, api: Api) -> Json:
    return await api.curve_reads.run(lambda: _read(alert, api))


def _read(alert: str, api: ApiState) -> Json:
    events = api.alert_events.of_alert(alert)
    in_memory = find_alert(list(api.published.runs.values()), alert)
    if in_memory is None and not events:
        detail = f"no alert {alert[:80]!a} is in memory or kept; /alerts has those that are"
        raise HTTPException(404, detail)
    found: dict[str, Any] = dict(events[-1].alert) if in_memory is None else in_memory.to_dict()
    run, attempt = found["run"], found["attempt"]
    view = api.published.runs.get(run)
    if view is not None and any(own.number == attempt for own in view.attempts):
        with api.engine.series.history(run, attempt) as history:
            add_steps(found, history)
    found["events"] = describe_events(events)
    found["silences"] = _silences(found, api)
    return Json(found)


def _silences(alert: dict[str, Any], api: ApiState) -> list[dict[str, Any]]:
    """Return the silences in force that fit the run and the rule of an alert."""
    now_ns = api.now_ns()
    return [
        describe(own)
        for own in api.published.silences
        if own.until_ns > now_ns and fits(own.run, alert["run"]) and fits(own.rule, alert["rule"])
    ]
