"""The answers to `/runs` and `/runs/{id}`, worked out from a snapshot. Plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gradwatch_server.core.alerting.alert import isotime
from gradwatch_server.core.alerting.wording import cut
from gradwatch_server.core.frames.gains import GainFrame
from gradwatch_server.core.noise_scale import MIN_SAMPLES, NoiseSample
from gradwatch_server.core.views.health import health
from gradwatch_server.core.views.ranks import LastSeen
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_wire.gains import gain_category, log_gains, summarize_gains
from gradwatch_wire.health import AlertState, Phase, Status

MAX_REASON: Final = 200
"""Characters of a reason in a list of runs."""


def describe_noise_scale(series: Sequence[NoiseSample]) -> dict[str, Any]:
    """Return what `/runs/{run}/noise-scale` says: the newest value, and the series."""
    last = series[-1] if series else None
    return {
        "step": last.step if last else None,
        "noise_scale": last.noise_scale if last else None,
        "min_samples": MIN_SAMPLES,
        "series": [sample._asdict() for sample in series],
    }


def describe_gains(frame: GainFrame | None) -> dict[str, Any]:
    """Return what `/runs/{run}/gains` says of a step, nothing made up where there is none."""
    if frame is None:
        answer: dict[str, Any] = {"step": None, "norm_type": None, "blocks": [], "transitions": []}
        return answer | {"summary": summarize_gains(()), "ranks": []}
    blocks = zip(frame.blocks, frame.norms, frame.smallest, frame.largest, strict=True)
    transitions = zip(
        frame.blocks[:-1], frame.blocks[1:], frame.gains, log_gains(frame.gains), strict=True
    )
    return {
        "step": frame.step,
        "norm_type": frame.norm_type,
        "blocks": [
            {"name": name, "norm": norm, "min": smallest, "max": largest}
            for name, norm, smallest, largest in blocks
        ],
        "transitions": [
            {
                "from": early,
                "to": late,
                "gain": gain,
                "log_gain": log,
                "category": gain_category(gain),
            }
            for early, late, gain, log in transitions
        ],
        "summary": summarize_gains(frame.gains),
        "ranks": list(frame.ranks),
    }


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run in short: its row of `/runs`, and the numbers of it that `/metrics` shows.

    Of a run that ended it is stored beside the checkpoint: a list of all runs needs no other.

    Args:
        reason: The first reason for it, in a sentence; empty without any.
        step: Step of the last frame, -1 without.
        lowest_score: The lowest one of the window, None without.
        norm: The last gradient norm over all layers and ranks, None if it is not known.
        nonfinite_steps: Steps of the window whose gradient norm was NaN or Inf.
        usual_step_time_s: Median of the newest gaps between steps, None while they are too few.
    """

    name: str
    attempt: int
    phase: Phase
    status: Status
    reason: str
    step: int
    updated_ns: int
    world: int
    records: dict[str, int]
    score: float | None
    lowest_score: float | None
    norm: float | None
    nonfinite_steps: int
    loss: float | None
    lr: float | None
    step_time_s: float | None
    usual_step_time_s: float | None
    live_attempts: int
    ranks: dict[str, int]
    firing: dict[str, int]
    rules: dict[str, dict[str, int]]

    @property
    def has_ended(self) -> bool:
        """True once the run ended, failed or was lost."""
        return self.phase not in (Phase.WAITING, Phase.RUNNING)

    def row(self) -> dict[str, Any]:
        """Return its row of `/runs`."""
        return {
            "run": self.name,
            "phase": self.phase,
            "status": self.status,
            "reason": self.reason,
            "attempt": self.attempt,
            "step": None if self.step < 0 else self.step,
            "updated_at": isotime(self.updated_ns),
            "world": self.world,
            "records": self.records,
            "loss": self.loss,
            "score": self.score,
            "ranks": sum(self.ranks.values()),
            "firing": sum(self.firing.values()),
        }


def summarize(
    view: RunView, last_seen: LastSeen, now_ns: int, fault: str | None = None
) -> RunSummary:
    """Return a run in short at a moment.

    Args:
        fault: Why the aggregator takes nothing in at the moment, None if it does.
    """
    report = health(view, last_seen, now_ns, fault)
    firing = [alert for alert in report["alerts"]["items"] if alert["state"] == AlertState.FIRING]
    rules: dict[str, dict[str, int]] = {}
    for alert in firing:
        counts = rules.setdefault(alert["rule"], {})
        counts[alert["severity"]] = counts.get(alert["severity"], 0) + 1
    return RunSummary(
        name=view.name,
        attempt=view.attempt,
        phase=report["phase"],
        status=report["status"],
        reason=cut(next(iter(report["reasons"]), ""), MAX_REASON),
        step=-1 if report["step"] is None else report["step"],
        updated_ns=view.updated_ns,
        world=view.world,
        records=report["records"],
        score=report["score"]["last"],
        lowest_score=report["score"]["min"],
        norm=report["gradient_norm"]["last"],
        nonfinite_steps=report["gradient_norm"]["nonfinite_steps"],
        loss=report["loss"],
        lr=report["lr"],
        step_time_s=report["step_time_s"],
        usual_step_time_s=report["usual_step_time_s"],
        live_attempts=sum(each.is_live for each in (view, *view.others)),
        ranks=dict(Counter(rank["state"] for rank in report["ranks"])),
        firing=dict(Counter(alert["severity"] for alert in firing)),
        rules=rules,
    )


def small_curve(view: RunView, limit: int) -> list[float | None]:
    """Return the gradient norm over the window in *limit* values; no maximum and no NaN is lost.

    Each stands for as many steps as the next, but the first, which may stand for fewer: its
    largest, NaN or Inf if there was one; null where nothing was known.
    """
    norms = np.where(view.series.known, view.series.total_norm, np.nan)
    bad = view.series.known & ~np.isfinite(view.series.total_norm)
    size = -(-len(norms) // limit) if len(norms) else 1
    curve: list[float | None] = []
    for end in range(len(norms), 0, -size):
        steps = slice(max(end - size, 0), end)
        values = norms[steps][~np.isnan(norms[steps])]
        if bad[steps].any():
            is_nan = np.isnan(norms[steps][bad[steps]]).any()
            curve.append(float("nan") if is_nan else float("inf"))
        else:
            curve.append(float(values.max()) if len(values) else None)
    return curve[::-1]


def describe_run(view: RunView) -> dict[str, Any]:
    """Return what `/runs/{id}` adds to the summary: attempts, layers and totals."""
    return {
        "created_at": isotime(view.created_ns),
        "frames": view.frames,
        "events": dict(view.events),
        "skipped_steps": view.skipped_steps,
        "attempts": [
            {
                "attempt": attempt.number,
                "started_at": isotime(attempt.started_ns),
                "world": attempt.world,
                "frames": attempt.frames,
            }
            for attempt in view.attempts
        ],
        "layers": [
            {"name": name, "numel": numel}
            for name, numel in zip(view.names, view.numel, strict=True)
        ],
    }


def name_run(view: RunView) -> dict[str, Any]:
    """Return what every other answer about a run begins with: its name and current attempt."""
    return {"run": view.name, "attempt": view.attempt}
