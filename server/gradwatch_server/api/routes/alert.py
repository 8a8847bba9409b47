"""One alert: where it began, the steps around that, and what has become of it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, HTTPException

from gradwatch_server.api.alert_details import add_steps, describe_events, find_alert
from gradwatch_server.api.layer_pages import Page
from gradwatch_server.api.problems import Json
from gradwatch_server.api.questions import ShowAlertLayers
from gradwatch_server.api.routes.silences import describe
from gradwatch_server.api.state import Api, ApiState
from gradwatch_server.core.alerting.silences import fits
from gradwatch_server.storage.store import AlertEvent

router = APIRouter()


@router.get("/alerts/{alert}", summary="One alert, with the steps around it and its events")
async def alert_(alert: str, api: Api) -> Json:
    return await api.curve_reads.run(lambda: _read(alert, api))


def _find(alert: str, api: ApiState) -> tuple[dict[str, Any], list[AlertEvent]]:
    """Return an alert and its stored events.

    Raises:
        HTTPException: 404, if it is neither in memory nor stored.
    """
    events = api.alert_events.of_alert(alert)
    in_memory = find_alert(list(api.published.runs.values()), alert)
    if in_memory is None and not events:
        detail = f"no alert {alert[:80]!a} is in memory or kept; /alerts has those that are"
        raise HTTPException(404, detail)
    found = dict(events[-1].alert) if in_memory is None else in_memory.to_dict()
    return found, events


def _read(alert: str, api: ApiState) -> Json:
    found, events = _find(alert, api)
    run, attempt = found["run"], found["attempt"]
    view = api.published.runs.get(run)
    if view is not None and any(own.number == attempt for own in view.attempts):
        with api.engine.series.history(run, attempt) as history:
            add_steps(found, history)
    found["events"] = describe_events(events)
    found["silences"] = _silences(found, api)
    return Json(found)


@router.get("/alerts/{alert}/layers", summary="All layers of one alert, in pages")
async def alert_layers(alert: str, api: Api, page: Page) -> Json:
    found = await api.curve_reads.run(lambda: _find(alert, api)[0])
    run, attempt = found["run"], found["attempt"]
    places = await api.command(ShowAlertLayers(run, attempt, alert))
    is_known = places is not None and found["num_layers"] > 0  # a rule about the run has none
    names = (await api.attempt(run, attempt)).names if is_known else tuple(found["layers"])
    there = [at for at in places.tolist() if at < len(names)] if is_known else range(len(names))
    shown, end = page.of(there, names)
    is_whole = len(there) >= found["num_layers"]
    facts = {
        "alert": alert,
        "run": run,
        "attempt": attempt,
        "total": max(len(there), found["num_layers"]),
        "layers": [names[at] for at in shown],
        "reason": None if is_whole else "it is over: of its layers only the first ones are kept",
    }
    return Json(facts | end)


def _silences(alert: dict[str, Any], api: ApiState) -> list[dict[str, Any]]:
    """Return the silences in force that fit the run and the rule of an alert."""
    now_ns = api.now_ns()
    return [
        describe(own)
        for own in api.published.silences
        if own.until_ns > now_ns and fits(own.run, alert["run"]) and fits(own.rule, alert["rule"])
    ]
