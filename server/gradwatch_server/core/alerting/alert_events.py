"""The events of one alert: it fires, has news, and is over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from gradwatch_server.core.alerting.active_alert import BURST, INTERVAL_NS, ActiveAlert
from gradwatch_server.core.alerting.alert import (
    MAX_NAMED_LAYERS,
    Alert,
    News,
    RelatedAlert,
    ResolvedBy,
    Update,
)
from gradwatch_server.core.alerting.evaluation import Evaluation
from gradwatch_server.core.alerting.fitting import first_names
from gradwatch_server.core.alerting.sentences import message
from gradwatch_wire.health import AlertState, Severity


def fire(active: ActiveAlert, evaluation: Evaluation) -> Alert:
    worst = active.peak.worst if active.peak is not None else None
    active.alert = replace(
        active.alert,
        state=AlertState.FIRING,
        fired_step=evaluation.step,
        fired_ns=evaluation.received_ns,
        worst=worst,
    )
    return _report(active, evaluation.received_ns)


def update(active: ActiveAlert, news: tuple[News, ...], evaluation: Evaluation) -> Alert:
    now_ns = evaluation.received_ns
    active.told.rate.acquire(now_ns, BURST, INTERVAL_NS)
    joined = active.layers & ~active.told.layers
    step, names = evaluation.step, evaluation.names
    _number(active, news, step, [names[i] for i in np.flatnonzero(joined)] if names else ())
    raised_step = step if News.SEVERITY in news else active.alert.raised_step
    worst = active.peak.worst if active.peak is not None else active.alert.worst
    active.alert = replace(active.alert, raised_step=raised_step, worst=worst)
    return _report(active, now_ns)


def escalate(
    active: ActiveAlert, severity: Severity, part: RelatedAlert, evaluation: Evaluation
) -> Alert:
    """Return the event that a consequence made it matter more."""
    _number(active, (News.SEVERITY,), evaluation.step, (), part)
    active.told.severity = severity
    active.alert = replace(active.alert, severity=severity, raised_step=evaluation.step)
    return _emit(active, evaluation.received_ns)


def add_note(active: ActiveAlert, news: News, now_ns: int) -> Alert:
    """Return the event of something that is no step."""
    _number(active, (news,), active.last_step, ())
    return _emit(active, now_ns)


def resolve(active: ActiveAlert, reason: ResolvedBy, step: int, now_ns: int) -> Alert:
    worst = active.peak.worst if active.peak is not None else active.alert.worst
    active.alert = replace(
        active.alert,
        state=AlertState.RESOLVED,
        resolved_step=step,
        resolved_by=reason,
        worst=worst,
        # Who was told that it fires is told that it is over, and nobody else.
        silenced=not active.told.loudly,
    )
    return _emit(active, now_ns)


def _report(active: ActiveAlert, now_ns: int) -> Alert:
    told = active.told
    told.layers, told.severity = active.layers.copy(), active.alert.severity
    told.kind = active.alert.origin.kind
    if active.peak is not None:
        told.excess, active.peak = active.peak.excess, None
    return _emit(active, now_ns)


def _emit(active: ActiveAlert, now_ns: int) -> Alert:
    active.told.loudly |= not active.alert.silenced
    active.waits = False
    changed = replace(active.as_it_stands(), updated_ns=now_ns)
    active.alert = replace(changed, message=message(changed))
    return active.alert


def _number(
    active: ActiveAlert,
    news: tuple[News, ...],
    step: int,
    joined: Iterable[str],
    part: RelatedAlert | None = None,
) -> None:
    names = tuple(joined)
    number = 1 if active.alert.update is None else active.alert.update.number + 1
    named = first_names(names, MAX_NAMED_LAYERS)
    active.alert = replace(active.alert, update=Update(number, step, news, named, len(names), part))
