"""The status of a run: the worst that holds, and why in words."""

from __future__ import annotations

from typing import Any

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_wire.health import RankState, Severity, Status


def find_status(
    view: RunView, ranks: list[dict[str, Any]], firing: list[Alert], fault: str | None
) -> tuple[Status, list[str]]:
    """Return the worst status that holds, and the reasons.

    Args:
        view: The run.
        ranks: What `describe_rank` says of its ranks.
        firing: The alerts of the current attempt that fire.
        fault: Why the aggregator takes nothing in at the moment, None if it does.
    """
    states = [rank["state"] for rank in ranks]
    alive = RankState.ALIVE in states
    if states and all(state is RankState.ENDED for state in states) and len(states) == view.world:
        return Status.ENDED, [*(a.message for a in firing), *_missing(view, ranks)]
    severe = [a.message for a in firing if a.severity == Severity.CRITICAL]
    if severe:
        return Status.CRITICAL, severe
    if fault is not None:
        return Status.INCOMPLETE, [fault]  # it cannot tell then which ranks are silent
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
    for state in (RankState.LOST, RankState.SILENT):
        affected = [str(rank["rank"]) for rank in ranks if rank["state"] is state]
        if affected:
            reasons.append(f"ranks {state}: {', '.join(affected)}")
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
        reasons.append(f"shards of {view.frame.num_partial} layers missing at the last step")
    return reasons
