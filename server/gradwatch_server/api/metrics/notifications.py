"""Metrics of notifications: the names of targets are those of the settings, so they are few."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from gradwatch_server.api.metrics.metric import Metric, Value
from gradwatch_server.api.metrics.snapshot import Snapshot
from gradwatch_server.notify.worker import Outcome


def _messages(snapshot: Snapshot) -> Iterable[Value]:
    for own in snapshot.targets:
        for result in Outcome:
            yield (own.name, str(result)), own.messages.get(result, 0)


def _pending(snapshot: Snapshot) -> Iterable[Value]:
    return [((own.name,), own.num_pending) for own in snapshot.targets]


def _age(snapshot: Snapshot) -> Iterable[Value]:
    now_s = time.time()
    for own in snapshot.targets:
        if own.succeeded_s is not None:
            yield (own.name,), max(now_s - own.succeeded_s, 0.0)


METRICS: Final = (
    Metric(
        "gradwatch_notifications_total",
        "Messages to targets since the start, by what became of each attempt.",
        _messages,
        ("target", "result"),
    ),
    Metric(
        "gradwatch_notifications_pending",
        "Alerts that a target is still to be told of.",
        _pending,
        ("target",),
    ),
    Metric(
        "gradwatch_notifications_last_success_age_seconds",
        "Time since a message was delivered to a target that ever had one.",
        _age,
        ("target",),
    ),
)
