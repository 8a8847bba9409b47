"""The answer to `/runs/{id}/health`, worked out from a snapshot. Plain data, floats as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any, Final

import numpy as np

from gradwatch_server.core.alerting.alert import Alert, isotime
from gradwatch_server.core.alerting.health_score import num_layers
from gradwatch_server.core.alerting.rules.base import HealthShare
from gradwatch_server.core.alerting.rules.registry import REGISTRY
from gradwatch_server.core.frames.frame import FloatArray
from gradwatch_server.core.frames.window import Series
from gradwatch_server.core.views.groups import ratios
from gradwatch_server.core.views.snapshot import RankView, RunView
from gradwatch_wire.health import AlertState, RankState, Severity, Status

SILENT_AFTER_S: Final = 6.0
"""A live rank of which nothing was heard this long is shown as silent: three beats."""

MAX_WORST_LAYERS: Final = 10

LastSeen = Mapping[bytes, int]
"""Session to the time of its last sign of life in nanoseconds since the epoch, beats included."""


def health(view: RunView, heard: LastSeen, now_ns: int, fault: str | None = None) -> dict[str, Any]:
    """Return a run's health in the shape that `docs/http.md` describes.

    Args:
        view: The run.
        heard: When each session was last heard of.
        now_ns: The time it is, nanoseconds since the epoch.
        fault: Why the aggregator takes nothing in at the moment, None if it does.
    """
    series = view.series
    ranks = [_rank(rank, heard, now_ns) for rank in view.ranks]
    current = [alert for alert in view.alerts if alert.attempt == view.attempt]
    firing = [alert for alert in current if alert.state is AlertState.FIRING]
    pending = [alert for alert in current if alert.state is AlertState.PENDING]
    layers = _layers(view)
    flags = view.flags or {}
    status, why = _status(view, ranks, firing, fault)
    return {
        "run": view.name,
        "status": status,
        "reasons": why,
        "attempt": view.attempt,
        "step": view.frame.step if view.frame else None,
        "updated_at": isotime(view.updated_ns),
        "score": _score(series.score),
        "window": {
            "steps": len(series.steps),
            "first_step": int(series.steps[0]) if len(series.steps) else None,
            "last_step": int(series.steps[-1]) if len(series.steps) else None,
            "coverage": float(series.coverage.mean()) if len(series.steps) else None,
        },
        "gradient_norm": _norms(series),
        "loss": view.frame.loss if view.frame else None,
        "has_vanishing": num_layers(HealthShare.VANISHING, flags) > 0,
        "has_exploding": num_layers(HealthShare.EXPLODING, flags) > 0,
        "layers": layers,
        "worst_layers": _worst_layers(view),
        "groups": ratios(view),
        "records": {
            "stored": view.stored,
            "lost": view.lost,
            "late": view.late,
            "unresolved": view.unresolved,
        },
        "world": view.world,
        "ranks": ranks,
        "alerts": {
            "firing": len(firing),
            "pending": len(pending),
            "items": [alert.to_dict() for alert in (*firing, *pending)],
        },
        "first_bad": asdict(view.first_bad) if view.first_bad else None,
    }


def _score(scores: FloatArray) -> dict[str, float | None]:
    scored = scores[~np.isnan(scores)]
    if not len(scored):
        return {"last": None, "mean": None, "min": None}
    return {
        "last": None if np.isnan(scores[-1]) else float(scores[-1]),
        "mean": float(scored.mean()),
        "min": float(scored.min()),
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
    frame, flags = view.frame, view.flags or {}
    counts = {"total": len(view.names)}
    for rule in reversed(REGISTRY.counted):
        counts[rule.name] = int(np.count_nonzero(flags[rule.name])) if rule.name in flags else 0
    for rule in REGISTRY.counted:
        for key, count in rule.further_counts.items():
            counts[key] = 0 if frame is None else count(frame)
    return counts


def _worst_layers(view: RunView) -> list[dict[str, Any]]:
    """Name the worst layers of the last frame, rule by rule, each one's worst layer first."""
    frame, flags = view.frame, view.flags or {}
    if frame is None:
        return []
    ranked = (
        {"name": view.names[i], "why": rule.name, "l2": float(rule.values(frame)[i])}
        for rule in REGISTRY.counted
        if rule.name in flags
        for i in rule.worst_first(frame, flags[rule.name])
    )
    return list(islice(ranked, MAX_WORST_LAYERS))


def _rank(rank: RankView, heard: LastSeen, now_ns: int) -> dict[str, Any]:
    last_ns = max(rank.last_ns, heard.get(rank.session or b"", 0))
    last_seen_s = max(0.0, (now_ns - last_ns) / 1e9)
    state = rank.state
    if state is RankState.ALIVE and last_seen_s > SILENT_AFTER_S:
        state = RankState.SILENT
    return {
        "rank": rank.rank,
        "state": state,
        "last_step": rank.last_step if rank.last_step >= 0 else None,
        "last_seen_s": round(last_seen_s, 3),
        "stored": rank.stored,
        "lost": rank.lost,
        "unresolved": rank.unresolved,
        "host": rank.host,
        "pid": rank.pid,
        "reason": rank.reason,
    }


def _status(
    view: RunView, ranks: list[dict[str, Any]], firing: list[Alert], fault: str | None
) -> tuple[Status, list[str]]:
    """Return the worst status that holds, and why in words."""
    states = [rank["state"] for rank in ranks]
    alive = RankState.ALIVE in states
    if states and all(state is RankState.ENDED for state in states) and len(states) == view.world:
        return Status.ENDED, [*(a.message for a in firing), *_missing(view, ranks)]
    severe = [a.message for a in firing if a.severity == Severity.CRITICAL]
    if severe:
        return Status.CRITICAL, severe
    if fault is not None:
        return Status.INCOMPLETE, [fault]  # who does not listen cannot call others silent
    if RankState.SILENT in states and not alive:
        return Status.STALLED, ["nothing heard of any rank"]
    missing = _missing(view, ranks)
    if missing:
        return Status.INCOMPLETE, missing
    notable = [a.message for a in firing if a.severity != Severity.INFO]
    if notable:
        return Status.DEGRADED, notable
    if view.frame is None:
        return Status.UNKNOWN, ["no step yet"]
    return Status.HEALTHY, []


def _missing(view: RunView, ranks: list[dict[str, Any]]) -> list[str]:
    """Say what keeps the data from being complete."""
    reasons = []
    for state, words in ((RankState.LOST, "gone without a goodbye"), (RankState.SILENT, "silent")):
        gone = [str(rank["rank"]) for rank in ranks if rank["state"] is state]
        if gone:
            reasons.append(f"ranks {words}: {', '.join(gone)}")
    if view.frame is not None and len(ranks) < view.world:
        reasons.append(f"{len(ranks)} of {view.world} ranks attached")
    if view.lost:
        reasons.append(f"{view.lost} records lost")
    if view.late:
        reasons.append(f"{view.late} records too late for their step")
    if view.unresolved:
        reasons.append(f"{view.unresolved} records without their manifest")
    if view.frame is not None and view.frame.coverage < 1.0 and not reasons:
        reasons.append(f"last step has {view.frame.coverage:.0%} of its ranks")
    if view.frame is not None and view.frame.num_partial:
        reasons.append(f"pieces of {view.frame.num_partial} layers missing at the last step")
    return reasons
