"""The events of one alert: it fires, has news, and is over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from gradwatch_server.core.alerting.active_alert import ActiveAlert
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


def fire(own: ActiveAlert, evaluation: Evaluation) -> Alert:
    worst = own.peak.worst if own.peak is not None else None
    own.alert = replace(
        own.alert,
        state=AlertState.FIRING,
        fired_step=evaluation.step,
        fired_ns=evaluation.received_ns,
        worst=worst,
    )
    return _tell(own, evaluation.received_ns)


def update(own: ActiveAlert, news: tuple[News, ...], evaluation: Evaluation) -> Alert:
    now_ns = evaluation.received_ns
    own.told.limit.acquire(now_ns)
    joined = own.layers & ~own.told.layers
    step, names = evaluation.step, evaluation.names
    _number(own, news, step, [names[i] for i in np.flatnonzero(joined)] if names else ())
    raised_step = step if News.SEVERITY in news else own.alert.raised_step
    worst = own.peak.worst if own.peak is not None else own.alert.worst
    own.alert = replace(own.alert, raised_step=raised_step, worst=worst)
    return _tell(own, now_ns)


def escalate(
    own: ActiveAlert, severity: Severity, part: RelatedAlert, evaluation: Evaluation
) -> Alert:
    """Return the event that a consequence made it matter more."""
    _number(own, (News.SEVERITY,), evaluation.step, (), part)
    own.told.severity = severity
    own.alert = replace(own.alert, severity=severity, raised_step=evaluation.step)
    return _restate(own, evaluation.received_ns)


def mention(own: ActiveAlert, news: News, now_ns: int) -> Alert:
    """Return the event of something that is no step."""
    _number(own, (news,), own.last_step, ())
    return _restate(own, now_ns)


def resolve(own: ActiveAlert, why: ResolvedBy, step: int, now_ns: int) -> Alert:
    worst = own.peak.worst if own.peak is not None else own.alert.worst
    own.alert = replace(
        own.alert,
        state=AlertState.RESOLVED,
        resolved_step=step,
        resolved_by=why,
        worst=worst,
        # Who was told that it fires is told that it is over, and nobody else.
        silenced=not own.told.loudly,
    )
    return _restate(own, now_ns)


def _tell(own: ActiveAlert, now_ns: int) -> Alert:
    told = own.told
    told.layers, told.severity = own.layers.copy(), own.alert.severity
    told.kind = own.alert.origin.kind
    if own.peak is not None:
        told.excess, own.peak = own.peak.excess, None
    return _restate(own, now_ns)


def _restate(own: ActiveAlert, now_ns: int) -> Alert:
    own.told.loudly |= not own.alert.silenced
    own.waits = False
    changed = replace(own.as_it_stands(), updated_ns=now_ns)
    own.alert = replace(changed, message=message(changed))
    return own.alert


def _number(
    own: ActiveAlert,
    news: tuple[News, ...],
    step: int,
    joined: Iterable[str],
    part: RelatedAlert | None = None,
) -> None:
    names = tuple(joined)
    number = 1 if own.alert.update is None else own.alert.update.number + 1
    named = first_names(names, MAX_NAMED_LAYERS)
    own.alert = replace(own.alert, update=Update(number, step, news, named, len(names), part))
