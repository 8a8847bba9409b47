"""One alert with what the curves and the store add to it: the steps around it, and its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.arrays import IndexArray
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.series.columns import RUN_COLUMNS, RUN_TABLE
from gradwatch_server.series.history import History, Span, Wanted
from gradwatch_server.storage.store import AlertEvent
from gradwatch_wire.columns import L2

NUM_AROUND: Final = 8
"""Steps before it and from it on that are shown."""

LOOK_AROUND: Final = 4_096
"""Steps among which these are looked for."""

_NORM: Final = RUN_COLUMNS.index("norm")


def find_alert(views: Sequence[RunView], alert_id: str) -> Alert | None:
    """Return an alert that is in memory, None if there is none of this id."""
    return next((own for view in views for own in view.alerts if own.id == alert_id), None)


def describe_events(events: Sequence[AlertEvent]) -> list[dict[str, Any]]:
    """Return what happened to an alert, oldest first."""
    keys = ("state", "severity", "updated_at", "message", "num_layers")
    return [{"cursor": own.cursor} | {key: own.alert.get(key) for key in keys} for own in events]


def add_steps(alert: dict[str, Any], history: History) -> None:
    """Add the steps around the first bad one, as far as they are kept.

    Args:
        alert: As the API shows it; `origin` gets `before` and `after`, itself `last_good_step`.
        history: The curves of its attempt.
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
    spans = [own for own in history.spans() if own.first <= step <= own.last]
    return spans[0] if len(spans) == 1 else None


def _last_good(history: History, span: Span, step: int) -> int | None:
    """Return the last step before at which the norm of all layers was finite."""
    first = max(step - LOOK_AROUND, span.first)
    if first >= step or history.finest(span.epoch, first, step - 1) > 1:
        return None
    items = np.array([_NORM], dtype=np.int64)
    found = history.buckets(Wanted(span.epoch, RUN_TABLE, items, first, step - 1), 1)
    good = found.numbers[found.finite[:, 0] > 0]
    return int(good[-1]) if len(good) else None


def _values(
    history: History, span: Span, items: IndexArray, first: int, last: int
) -> list[dict[str, Any]]:
    """Return step and L2 norm at the steps that had one."""
    first = max(first, span.first)
    if first > last or history.finest(span.epoch, first, last) > 1:
        return []
    found = history.buckets(Wanted(span.epoch, L2, items, first, last), 1)
    _, nan, inf, _, _ = found.counts[:, :, 0]
    values = np.where(nan > 0, np.nan, np.where(inf > 0, np.inf, found.stats[3, :, 0]))
    known = found.counts[0, :, 0] > 0
    steps = found.numbers[known].tolist()
    return [
        {"step": step, "l2": value}
        for step, value in zip(steps, values[known].tolist(), strict=True)
    ]
