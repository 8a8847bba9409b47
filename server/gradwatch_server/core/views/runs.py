"""The answers to `/runs` and `/runs/{id}`, worked out from a snapshot. Plain data."""

from __future__ import annotations

from typing import Any

from gradwatch_server.core.alerting.alert import isotime
from gradwatch_server.core.views.health import health
from gradwatch_server.core.views.ranks import LastSeen
from gradwatch_server.core.views.snapshot import RunView


def summarize_run(
    view: RunView, last_seen: LastSeen, now_ns: int, fault: str | None = None
) -> dict[str, Any]:
    """Return a run in short, as `/runs` lists it.

    Args:
        view: The run.
        last_seen: When each session was last heard of.
        now_ns: The time it is, nanoseconds since the epoch.
        fault: Why the aggregator takes nothing in at the moment, None if it does.
    """
    return shorten(view, health(view, last_seen, now_ns, fault))


def shorten(view: RunView, report: dict[str, Any]) -> dict[str, Any]:
    """Return what `/runs` lists of the health of a run."""
    keys = ("run", "phase", "status", "attempt", "step", "updated_at", "world", "records")
    return {key: report[key] for key in keys} | {
        "score": report["score"]["last"],
        "ranks": len(view.ranks),
        "firing": report["alerts"]["firing"],
    }


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
