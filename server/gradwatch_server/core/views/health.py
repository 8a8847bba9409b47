"""The answer to `/runs/{id}/health`, worked out from a snapshot. Plain data, floats as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any, Final

import numpy as np

from gradwatch_server.core.alerting.alert import isotime
from gradwatch_server.core.alerting.flags import Flags
from gradwatch_server.core.alerting.health_score import num_layers
from gradwatch_server.core.alerting.rules.base import HealthShare
from gradwatch_server.core.alerting.rules.liveness import MIN_GAPS
from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.frames.window import Series
from gradwatch_server.core.views.groups import ratios
from gradwatch_server.core.views.last_good import last_good_step
from gradwatch_server.core.views.ranks import LastSeen, count_records, describe_rank
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.core.views.status import find_phase, find_status
from gradwatch_wire.health import AlertState, RankState, Status

MAX_WORST_LAYERS: Final = 10


def health(
    view: RunView, last_seen: LastSeen, now_ns: int, fault: str | None = None
) -> dict[str, Any]:
    """Return a run's health in the shape that `docs/http.md` describes.

    Args:
        view: The run.
        last_seen: When each session gave its last sign of life.
        now_ns: The time it is, nanoseconds since the epoch.
        fault: Why the aggregator takes nothing in at the moment, None if it does.
    """
    series = view.series
    ranks = [describe_rank(rank, last_seen, now_ns) for rank in view.ranks]
    current = [alert for alert in view.alerts if alert.attempt == view.attempt]
    firing = [alert for alert in current if alert.state is AlertState.FIRING]
    pending = [alert for alert in current if alert.state is AlertState.PENDING]
    layers = _layers(view)
    flags = view.flags or Flags()
    status, why = find_status(view, ranks, firing, fault)
    return {
        "run": view.name,
        "phase": find_phase(view, ranks),
        "status": status,
        "reasons": [*why, *_beside(view, last_seen, now_ns, fault)],
        "attempt": view.attempt,
        "revision": view.revision,
        "now": isotime(now_ns),
        "step": view.frame.step if view.frame else None,
        "point": view.frame.point if view.frame else None,
        "updated_at": isotime(view.updated_ns),
        "score": _score(series.score),
        "window": _window(series),
        "gradient_norm": _norms(series),
        "loss": view.frame.loss if view.frame else None,
        "lr": view.frame.lr if view.frame else None,
        "step_time_s": view.frame.step_time_s if view.frame else None,
        "usual_step_time_s": _usual_step_time(view),
        "last_good_step": last_good_step(view.series, firing),
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


def _usual_step_time(view: RunView) -> float | None:
    """Return the median of the newest gaps between steps, None while they are too few."""
    return view.gaps.median_s if view.gaps.count >= MIN_GAPS else None


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
