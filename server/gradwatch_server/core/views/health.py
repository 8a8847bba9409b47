"""The answer to `/runs/{id}/health`, worked out from a snapshot. Plain data, floats as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any, Final, TypeAlias

import numpy as np

from gradwatch_server.core.alerting.alert import Alert, isotime
from gradwatch_server.core.alerting.flags import Flags, num_layers
from gradwatch_server.core.alerting.rules.base import HealthShare
from gradwatch_server.core.alerting.rules.liveness import MIN_GAPS
from gradwatch_server.core.alerting.rules.registry import REGISTRY
from gradwatch_server.core.alerting.sentences import Trouble
from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.frames.window import Series
from gradwatch_server.core.views.groups import ratios
from gradwatch_server.core.views.ranks import LastSeen, count_records, describe_rank
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_wire.health import AlertState, Phase, RankState, Severity, Status

MAX_WORST_LAYERS: Final = 10

Finding: TypeAlias = tuple[Status, str]
"""Something that holds: the status that it means at least, and what it is in words."""

_LIVING = (RankState.ALIVE, RankState.SILENT)


def find_phase(view: RunView, ranks: list[dict[str, Any]]) -> Phase:
    """Return where an attempt is in its life.

    Args:
        ranks: What `describe_rank` says of its ranks.
    """
    states = {rank["state"] for rank in ranks}
    if states.intersection(_LIVING):
        began = view.frames or any(rank["last_step"] is not None for rank in ranks)
        return Phase.RUNNING if began else Phase.WAITING
    if RankState.FAILED in states:
        return Phase.FAILED
    return Phase.LOST if RankState.LOST in states else Phase.ENDED


def find_status(
    view: RunView, ranks: list[dict[str, Any]], firing: list[Alert], fault: str | None
) -> tuple[Status, list[str]]:
    """Return the worst status that holds, and all reasons, the worst first.

    Args:
        ranks: What `describe_rank` says of its ranks.
        fault: Why the aggregator takes nothing in at the moment, None if it does.
    """
    findings = [*map(_of_alert, firing), *_liveness(view, ranks, fault), *_missing(view, ranks)]
    if not view.frames:
        findings.append((Status.UNKNOWN, "no step yet"))
    order = list(Status)
    told = [finding for finding in findings if finding[0] is not Status.HEALTHY]
    told.sort(key=lambda finding: order.index(finding[0]), reverse=True)
    status = told[0][0] if told else Status.HEALTHY
    return status, [reason for _, reason in told]


def _of_alert(alert: Alert) -> Finding:
    if alert.severity is Severity.CRITICAL:
        return Status.CRITICAL, alert.message
    if alert.origin.kind == Trouble.STALLED:
        return Status.STALLED, alert.message
    worth_telling = alert.severity is not Severity.INFO
    return (Status.DEGRADED if worth_telling else Status.HEALTHY), alert.message


def _liveness(view: RunView, ranks: list[dict[str, Any]], fault: str | None) -> Iterator[Finding]:
    states = {rank["state"] for rank in ranks}
    living = states.intersection(_LIVING)
    if living and fault is not None:
        yield Status.INCOMPLETE, fault
    elif living == {RankState.SILENT}:
        yield Status.STALLED, "nothing heard of any rank"
    for state in (RankState.LOST, RankState.FAILED, RankState.SILENT):
        if state is RankState.SILENT and (fault is not None or RankState.ALIVE not in states):
            continue  # it cannot tell then which ranks are silent, or has said that all are
        affected = [str(rank["rank"]) for rank in ranks if rank["state"] is state]
        if affected:
            yield Status.INCOMPLETE, f"ranks {state}: {', '.join(affected)}"
    if view.frames and len(ranks) < view.world:
        yield Status.INCOMPLETE, f"{len(ranks)} of {view.world} ranks attached"


def _missing(view: RunView, ranks: list[dict[str, Any]]) -> Iterator[Finding]:
    """Say what keeps the data of the window from being complete."""
    counted = (
        (view.recent_lost, "lost"),
        (view.recent_late, "too late for their step"),
        (view.recent_unresolved, "without their manifest"),
    )
    told = len(ranks) < view.world
    told |= any(rank["state"] not in (RankState.ALIVE, RankState.ENDED) for rank in ranks)
    for count, what in counted:
        if count:
            told = True
            yield Status.INCOMPLETE, f"{count} record{'s' if count > 1 else ''} {what}"
    if view.frame is not None and view.frame.coverage < 1.0 and not told:
        yield Status.INCOMPLETE, f"last step has {view.frame.coverage:.0%} of its ranks"
    if view.unknown_layers:
        yield Status.INCOMPLETE, view.unknown_layers
    elif view.frame is not None and view.frame.num_partial:
        shards = f"shards of {view.frame.num_partial} layers missing at the last step"
        yield Status.INCOMPLETE, shards


def last_good_step(series: Series, firing: Sequence[Alert]) -> int | None:
    """Return the newest step that was good, before the first fault that fires.

    That is one with a finite norm, or one that a rule knows to have been right, which may be newer:
    a sentinel has looked at it, and no frame is of it. None if that is not known: the window has no
    such step, or began after the first bad one. Steps of before a jump back are left out, as their
    numbers came again. A fault is a warning or a critical alert of a rule that spoils steps.
    """
    faults = (alert for alert in firing if alert.severity is not Severity.INFO)
    ends = [_last_good_of(fault) for fault in faults if REGISTRY[fault.rule].spoils_steps]
    end, is_certain = min(ends, default=(None, False))
    back = np.flatnonzero(np.diff(series.steps) <= 0)
    since = slice(int(back[-1]) + 1 if len(back) else 0, None)
    steps = series.steps[since]
    good = steps[series.known[since] & np.isfinite(series.total_norm[since])]
    if is_certain:
        return end
    if end is not None:
        good = good[good <= end]
    return int(good[-1]) if len(good) else None


def _last_good_of(alert: Alert) -> tuple[int, bool]:
    """Return the last step that may have been good, and whether that is certain."""
    last = alert.origin.last_good_step
    return (alert.first_step - 1, False) if last is None else (last, True)


def health(
    view: RunView, last_seen: LastSeen, now_ns: int, fault: str | None = None
) -> dict[str, Any]:
    """Return a run's health in the shape that `docs/http.md` describes.

    Args:
        fault: Why the aggregator takes nothing in at the moment, None if it does.
    """
    series = view.series
    ranks = [describe_rank(rank, last_seen, now_ns) for rank in view.ranks]
    current = [alert for alert in view.alerts if alert.attempt == view.attempt]
    firing = [alert for alert in current if alert.state is AlertState.FIRING]
    pending = [alert for alert in current if alert.state is AlertState.PENDING]
    layers = _layers(view)
    flags = view.flags or Flags()
    status, reasons = find_status(view, ranks, firing, fault)
    return {
        "run": view.name,
        "phase": find_phase(view, ranks),
        "status": status,
        "reasons": [*reasons, *_beside(view, last_seen, now_ns, fault), *_relearnt(view)],
        "attempt": view.attempt,
        "revision": view.revision,
        "now": isotime(now_ns),
        "step": _newest_step(view),
        "point": view.frame.point if view.frame else None,
        "updated_at": isotime(view.updated_ns),
        "score": _score(series.score),
        "window": _window(series),
        "gradient_norm": _norms(series),
        "loss": view.frame.loss if view.frame else None,
        "lr": view.frame.lr if view.frame else None,
        "step_time_s": view.frame.step_time_s if view.frame else None,
        "usual_step_time_s": view.gaps.median_s if view.gaps.count >= MIN_GAPS else None,
        "last_good_step": last_good_step(view.series, firing),
        "pace": next((rank["pace"] for rank in ranks if rank["pace"]), None),
        "has_vanishing": num_layers(HealthShare.VANISHING, flags, view.rules) > 0,
        "has_exploding": num_layers(HealthShare.EXPLODING, flags, view.rules) > 0,
        "layers": layers,
        "worst_layers": _worst_layers(view),
        "groups": ratios(view),
        "records": count_records(view),
        "world": view.world,
        "ranks": ranks,
        "alerts": {
            "firing": len(firing),
            "pending": len(pending),
            "items": [alert.to_dict() for alert in (*firing, *pending)],
        },
        "first_bad": asdict(view.first_bad) if view.first_bad else None,
    }


def _relearnt(view: RunView) -> Iterator[str]:
    if view.is_relearnt:
        yield (
            "its checkpoint could not be read at the last start: what is usual was learnt again "
            "from its log, as far as that goes back"
        )


def _beside(view: RunView, last_seen: LastSeen, now_ns: int, fault: str | None) -> Iterator[str]:
    """Say which other jobs live under the same name, and how they are."""
    reports = [health(other, last_seen, now_ns, fault) for other in view.others if other.is_live]
    living = [
        report
        for report in reports
        if any(rank["state"] is RankState.ALIVE for rank in report["ranks"])
    ]
    if not view.is_live or not living:
        return
    numbers = ", ".join(str(report["attempt"]) for report in (*living, {"attempt": view.attempt}))
    yield f"{len(living) + 1} live jobs under this name: attempts {numbers}"
    for report in living:
        if report["status"] not in (Status.HEALTHY, Status.UNKNOWN):
            yield f"attempt {report['attempt']} is {report['status']}"


def _newest_step(view: RunView) -> int | None:
    """Return the newest step that is known: that of the last frame, or with which a rank ended."""
    ended = {RankState.ENDED, RankState.FAILED}
    steps = [rank.last_step for rank in view.ranks if rank.state in ended]
    return max([view.frame.step, *steps]) if view.frame else None


def _window(series: Series) -> dict[str, Any]:
    filled = len(series.steps) > 0
    return {
        "steps": len(series.steps),
        "first_step": int(series.steps[0]) if filled else None,
        "last_step": int(series.steps[-1]) if filled else None,
        "coverage": float(series.coverage.mean()) if filled else None,
    }


def _score(scores: FloatArray) -> dict[str, float | None]:
    known = scores[~np.isnan(scores)]
    if not len(known):
        return {"last": None, "mean": None, "min": None}
    return {
        "last": None if np.isnan(scores[-1]) else float(scores[-1]),
        "mean": float(known.mean()),
        "min": float(known.min()),
    }


def _norms(series: Series) -> dict[str, Any]:
    """Summarise over the finite steps: one NaN must not hide the rest, nor be hidden itself."""
    norms = series.total_norm[series.known]
    finite = norms[np.isfinite(norms)]
    summary: dict[str, Any] = dict.fromkeys(("mean", "std", "p50", "p95", "max"))
    if len(finite):
        largest = float(finite.max())
        p50, p95 = np.percentile(finite, [50, 95])
        scale = largest if largest > 1e150 else 1.0  # or the squares would overflow
        summary = {
            "mean": float((finite / scale).mean()) * scale,
            "std": float((finite / scale).std()) * scale,
            "p50": float(p50),
            "p95": float(p95),
            "max": largest,
        }
    return {
        "last": float(norms[-1]) if series.known[-1:].all() and len(norms) else None,
        **summary,
        "nonfinite_steps": len(norms) - len(finite),
    }


def _layers(view: RunView) -> dict[str, int]:
    """Count the layers that each rule flags at the last step, the worst rule last."""
    frame, masks = view.frame, (view.flags or Flags()).masks
    counts = {"total": len(view.names)}
    for rule in reversed(view.rules.counted):
        counts[rule.name] = int(np.count_nonzero(masks[rule.name])) if rule.name in masks else 0
    for rule in view.rules.counted:
        for key, count in rule.further_counts.items():
            counts[key] = 0 if frame is None else count(frame)
    return counts


def _worst_layers(view: RunView) -> list[dict[str, Any]]:
    """Name the worst layers of the last frame, rule by rule, each one's worst layer first."""
    frame, masks = view.frame, (view.flags or Flags()).masks
    if frame is None:
        return []
    ranked = (
        {"name": view.names[i], "why": rule.name, "l2": float(rule.values(frame)[i])}
        for rule in view.rules.counted
        if rule.name in masks
        for i in rule.worst_first(frame, masks[rule.name])
    )
    return list(islice(ranked, MAX_WORST_LAYERS))
