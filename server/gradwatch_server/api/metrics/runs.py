"""Metrics of the runs: how many there are in each state, and numbers of the last ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from gradwatch_server.api.metrics.metric import Metric, Value, one
from gradwatch_server.api.metrics.snapshot import Snapshot
from gradwatch_server.core.views.runs import RunSummary
from gradwatch_wire.health import Phase, RankState, Severity, Status

Read = Callable[[Snapshot], Iterable[Value]]


def _counts(count: Callable[[Snapshot], Mapping[Any, int]], words: type[StrEnum]) -> Read:
    """Return what reads how many there are of each word, also where there are none."""

    def values(snapshot: Snapshot) -> Iterable[Value]:
        counts = count(snapshot)
        return [((word.value,), counts.get(word, 0)) for word in words]

    return values


def _ranks(snapshot: Snapshot) -> Counter[str]:
    return sum((Counter(own.ranks) for own in snapshot.runs), Counter())


def _firing(snapshot: Snapshot) -> Counter[str]:
    live = (Counter(own.firing) for own in snapshot.runs if not own.has_ended)
    return sum(live, Counter())


def _each(read: Callable[[RunSummary], float | None]) -> Read:
    """Return what reads a number of each run, of those where it is known."""

    def values(snapshot: Snapshot) -> Iterable[Value]:
        found = ((own.name, read(own)) for own in snapshot.labelled)
        return [((run,), value) for run, value in found if value is not None]

    return values


def _each_by(count: Callable[[RunSummary], Mapping[Any, int]], words: Iterable[str]) -> Read:
    """Return what reads how many of each word there are of each run, also where there are none."""
    known = tuple(words)

    def values(snapshot: Snapshot) -> Iterable[Value]:
        for own in snapshot.labelled:
            counts = count(own)
            yield from (((own.name, str(word)), counts.get(word, 0)) for word in known)

    return values


def _rules(snapshot: Snapshot) -> Iterable[Value]:
    for own in snapshot.labelled:
        for rule, counts in own.rules.items():
            yield from (((own.name, rule, severity), count) for severity, count in counts.items())


METRICS: Final = (
    Metric(
        "gradwatch_runs",
        "Runs in memory by status.",
        _counts(lambda snapshot: Counter(own.status for own in snapshot.runs), Status),
        ("status",),
    ),
    Metric(
        "gradwatch_runs_in_phase",
        "Runs in memory by phase.",
        _counts(lambda snapshot: Counter(own.phase for own in snapshot.runs), Phase),
        ("phase",),
    ),
    Metric(
        "gradwatch_runs_left_out",
        "Runs without numbers of their own, beyond 50.",
        lambda snapshot: one(len(snapshot.runs) - len(snapshot.labelled)),
    ),
    Metric(
        "gradwatch_ranks",
        "Ranks of the current attempts of all runs by state.",
        _counts(_ranks, RankState),
        ("state",),
    ),
    Metric(
        "gradwatch_alerts_firing",
        "Firing alerts by severity, of all runs that have not ended.",
        _counts(_firing, Severity),
        ("severity",),
    ),
    Metric(
        "gradwatch_run_status",
        "1 for the status that the run has, 0 for the others.",
        _each_by(lambda own: {own.status: 1}, Status),
        ("run", "status"),
    ),
    Metric(
        "gradwatch_run_phase",
        "1 for the phase that the run is in, 0 for the others.",
        _each_by(lambda own: {own.phase: 1}, Phase),
        ("run", "phase"),
    ),
    Metric(
        "gradwatch_run_attempt",
        "Number of the current attempt, from 1: it rises when a job is started again.",
        _each(lambda own: own.attempt),
        ("run",),
    ),
    Metric(
        "gradwatch_run_step",
        "The last step that is complete, or was closed without ranks that are missing.",
        _each(lambda own: None if own.step < 0 else own.step),
        ("run",),
    ),
    Metric(
        "gradwatch_run_step_time_seconds",
        "Time from the step before to the last one, by the slowest rank.",
        _each(lambda own: own.step_time_s),
        ("run",),
    ),
    Metric(
        "gradwatch_run_usual_step_time_seconds",
        "Median of the newest gaps between steps; absent while they are too few.",
        _each(lambda own: own.usual_step_time_s),
        ("run",),
    ),
    Metric(
        "gradwatch_run_last_record_timestamp_seconds",
        "When the run was last heard of, since the epoch.",
        _each(lambda own: own.updated_ns / 1e9),
        ("run",),
    ),
    Metric(
        "gradwatch_run_gradient_norm",
        "L2 norm of the whole gradient at the last step, over all layers and ranks; NaN or Inf "
        "where it was; absent where it is not known.",
        _each(lambda own: own.norm),
        ("run",),
    ),
    Metric(
        "gradwatch_run_nonfinite_steps",
        "Steps of the rolling window whose gradient norm was NaN or Inf.",
        _each(lambda own: own.nonfinite_steps),
        ("run",),
    ),
    Metric(
        "gradwatch_run_loss",
        "Loss at the last step: the mean over the ranks that gave one.",
        _each(lambda own: own.loss),
        ("run",),
    ),
    Metric(
        "gradwatch_run_learning_rate",
        "Learning rate at the last step, the largest that any rank gave.",
        _each(lambda own: own.lr),
        ("run",),
    ),
    Metric(
        "gradwatch_run_score",
        "Health score of the last step, from 0 to 1.",
        _each(lambda own: own.score),
        ("run",),
    ),
    Metric(
        "gradwatch_run_lowest_score",
        "The lowest health score of the rolling window.",
        _each(lambda own: own.lowest_score),
        ("run",),
    ),
    Metric(
        "gradwatch_run_ranks",
        "Ranks of the current attempt by state.",
        _each_by(lambda own: own.ranks, RankState),
        ("run", "state"),
    ),
    Metric(
        "gradwatch_run_alerts_firing",
        "Firing alerts of the current attempt by severity.",
        _each_by(lambda own: own.firing, Severity),
        ("run", "severity"),
    ),
    Metric(
        "gradwatch_run_rule_alerts_firing",
        "The same by rule; only of rules that have one.",
        _rules,
        ("run", "rule", "severity"),
    ),
    Metric(
        "gradwatch_run_records_total",
        "Records of the run, also of before a restart, by what became of them: stored, or lost.",
        _each_by(lambda own: own.records, ("stored", "lost")),
        ("run", "outcome"),
    ),
)
