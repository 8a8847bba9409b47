"""Phase and status of a run: where it is in its life, and how well it is, with all reasons."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.sentences import Trouble
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_wire.health import Phase, RankState, Severity, Status

Finding: TypeAlias = tuple[Status, str]
"""Something that holds: the status that it means at least, and what it is in words."""

_LIVING = (RankState.ALIVE, RankState.SILENT)


def find_phase(view: RunView, ranks: list[dict[str, Any]]) -> Phase:
    """Return where an attempt is in its life.

    Args:
        view: The attempt.
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
        view: The attempt.
        ranks: What `describe_rank` says of its ranks.
        firing: Its alerts that fire.
        fault: Why the aggregator takes nothing in at the moment, None if it does.
    """
    findings = [*map(_of_alert, firing), *_liveness(view, ranks, fault), *_missing(view, ranks)]
    if not view.frames:
        findings.append((Status.UNKNOWN, "no step yet"))
    order = list(Status)
    told = [own for own in findings if own[0] is not Status.HEALTHY]
    told.sort(key=lambda own: order.index(own[0]), reverse=True)
    status = told[0][0] if told else Status.HEALTHY
    return status, [why for _, why in told]


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
    if view.frame is not None and view.frame.num_partial:
        shards = f"shards of {view.frame.num_partial} layers missing at the last step"
        yield Status.INCOMPLETE, shards
