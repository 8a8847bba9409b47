"""One alert: where it began, the steps around that, and what has become of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from fastapi import APIRouter, HTTPException

from gradwatch_server.api.layer_pages import Page
from gradwatch_server.api.problems import Json
from gradwatch_server.api.questions import show_alert_layers
from gradwatch_server.api.routes.silences import describe
from gradwatch_server.api.state import Api, ApiState
from gradwatch_server.core.alerting.silences import fits
from gradwatch_server.core.arrays import IndexArray
from gradwatch_server.curves.columns import RUN_COLUMNS, RUN_TABLE
from gradwatch_server.curves.facts import SeriesQuery, Span
from gradwatch_server.curves.reader import History
from gradwatch_server.storage.rows import AlertEvent
from gradwatch_wire.columns import L2

router = APIRouter()

NUM_AROUND: Final = 8
"""Steps before it and from it on that are shown."""

LOOK_AROUND: Final = 4_096
"""Steps among which these are looked for."""

_NORM: Final = RUN_COLUMNS.index("norm")


def describe_events(events: Sequence[AlertEvent]) -> list[dict[str, Any]]:
    """Return what happened to an alert, oldest first."""
    keys = ("state", "severity", "updated_at", "message", "num_layers")
    return [
        {"cursor": event.cursor} | {key: event.alert.get(key) for key in keys} for event in events
    ]


def add_steps(alert: dict[str, Any], history: History) -> None:
    """Add the steps around the first bad one, as far as they are kept.

    Args:
        alert: As the API shows it; `origin` gets `before` and `after`, itself `last_good_step`.
    """
    origin, step = alert["origin"], alert["first_step"]
    alert["last_good_step"] = origin.get("last_good_step")
    origin["after"] = []
    span = _span_of(history, step)
    if span is None:
        return
    if alert["last_good_step"] is None:
        alert["last_good_step"] = _last_good(history, span, step)
    place = history.layers.places.get(origin.get("layer") or origin.get("first_gradient") or "")
    if place is None:
        return
    items = np.array([place], dtype=np.int64)
    before = _values(history, span, items, step - LOOK_AROUND, step - 1)
    origin["before"] = before[-NUM_AROUND:] or origin["before"]
    origin["after"] = _values(history, span, items, step, step + LOOK_AROUND)[:NUM_AROUND]


def _span_of(history: History, step: int) -> Span | None:
    """Return the one epoch that has a step; None if it is not known which one is meant."""
    spans = [span for span in history.spans() if span.first <= step <= span.last]
    return spans[0] if len(spans) == 1 else None


def _last_good(history: History, span: Span, step: int) -> int | None:
    """Return the last step before at which the norm of all layers was finite."""
    first = max(step - LOOK_AROUND, span.first)
    if first >= step or history.finest(span.epoch, first) > 1:
        return None
    items = np.array([_NORM], dtype=np.int64)
    buckets = history.buckets(SeriesQuery(span.epoch, RUN_TABLE, items, first, step - 1), 1)
    good = buckets.numbers[buckets.finite[:, 0] > 0]
    return int(good[-1]) if len(good) else None


def _values(
    history: History, span: Span, items: IndexArray, first: int, last: int
) -> list[dict[str, Any]]:
    """Return step and L2 norm at the steps that had one."""
    first = max(first, span.first)
    if first > last or history.finest(span.epoch, first) > 1:
        return []
    buckets = history.buckets(SeriesQuery(span.epoch, L2, items, first, last), 1)
    _, nan, inf, _, _ = buckets.counts[:, :, 0]
    values = np.where(nan > 0, np.nan, np.where(inf > 0, np.inf, buckets.stats[3, :, 0]))
    known = buckets.counts[0, :, 0] > 0
    steps = buckets.numbers[known].tolist()
    return [
        {"step": step, "l2": value}
        for step, value in zip(steps, values[known].tolist(), strict=True)
    ]


@router.get("/alerts/{alert}", summary="One alert, with the steps around it and its events")
async def alert_(alert: str, api: Api) -> Json:
    standing, events = await _find(alert, api)
    return await api.curve_reads.run(lambda: _read(standing, events, api))


async def _find(alert: str, api: ApiState) -> tuple[dict[str, Any], list[AlertEvent]]:
    """Return an alert and its stored events."""
    in_memory, events = await api.alert(alert)
    if in_memory is None and not events:
        detail = f"no alert {alert[:80]!a} is in memory or kept; /alerts has those that are"
        raise HTTPException(404, detail)
    return dict(events[-1].alert) if in_memory is None else in_memory.to_dict(), events


def _read(answer: dict[str, Any], events: list[AlertEvent], api: ApiState) -> Json:
    run, attempt = answer["run"], answer["attempt"]
    view = api.published.views.get(run)
    if view is not None and any(line.number == attempt for line in view.attempts):
        with api.engine.curves.history(run, attempt) as history:
            add_steps(answer, history)
    answer["events"] = describe_events(events)
    answer["silences"] = _silences(answer, api)
    return Json(answer)


@router.get("/alerts/{alert}/layers", summary="Layers of one alert, in pages")
async def alert_layers(alert: str, api: Api, page: Page) -> Json:
    standing, _ = await _find(alert, api)
    run, attempt = standing["run"], standing["attempt"]
    places = await api.command(show_alert_layers(run, attempt, alert))
    is_known = places is not None and standing["num_layers"] > 0  # a rule about the run has none
    names = (await api.attempt(run, attempt)).names if is_known else tuple(standing["layers"])
    there = [at for at in places.tolist() if at < len(names)] if is_known else range(len(names))
    shown, end = page.of(there, names)
    is_whole = len(there) >= standing["num_layers"]
    facts = {
        "alert": alert,
        "run": run,
        "attempt": attempt,
        "total": max(len(there), standing["num_layers"]),
        "layers": [names[at] for at in shown],
        "reason": None if is_whole else "it is over: of its layers only the first ones are kept",
    }
    return Json(facts | end)


def _silences(alert: dict[str, Any], api: ApiState) -> list[dict[str, Any]]:
    """Return the silences in force that fit the run and the rule of an alert."""
    now_ns = api.now_ns()
    return [
        describe(silence)
        for silence in api.published.silences
        if silence.until_ns > now_ns
        and fits(silence.run, alert["run"])
        and fits(silence.rule, alert["rule"])
    ]
