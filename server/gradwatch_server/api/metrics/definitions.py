"""Definitions of all metrics, in the order of the documentation."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from gradwatch_server.api.metrics.metric import Metric, Read, Snapshot, Value
from gradwatch_server.budgets import Use
from gradwatch_server.core.views.runs import RunSummary
from gradwatch_server.engine.metrics import INGEST_LAG, LOG_WRITE
from gradwatch_server.notify.worker import DeliveryResult
from gradwatch_wire import __version__
from gradwatch_wire.health import Phase, RankState, Severity, Status


def _one(read: Callable[[Snapshot], float]) -> Read:
    """Return a reader of a metric without labels."""
    return lambda snapshot: [((), read(snapshot))]


def _is_ready(snapshot: Snapshot) -> int:
    engine = snapshot.engine
    return int(engine.published.fault is None and engine.is_alive())


def _records(snapshot: Snapshot) -> Iterable[Value]:
    counts = snapshot.engine.metrics
    yield ("stored",), counts.stored
    yield ("lost",), counts.lost
    yield ("duplicate",), snapshot.engine.published.num_duplicates


def _refused(snapshot: Snapshot) -> Iterable[Value]:
    counts = dict(snapshot.engine.refused) | dict(snapshot.refused)
    return [((kind,), count) for kind, count in counts.items()]


def _missing(snapshot: Snapshot) -> int:
    loss = snapshot.engine.published.loss
    return 0 if loss is None else loss.rows


def _limits(snapshot: Snapshot) -> Iterable[Value]:
    use = snapshot.engine.budget_use
    return [((name,), use.limit(name)) for name in use]


def _use(read: Callable[[Use], float | None]) -> Read:
    """Return a reader of a number of each budget in which that number is known."""

    def values(snapshot: Snapshot) -> Iterable[Value]:
        use = snapshot.engine.budget_use
        pairs = ((name, read(use[name])) for name in use)
        return [((name,), value) for name, value in pairs if value is not None]

    return values


def _disk(index: int) -> Read:
    """Return a reader of the size of the file system (0) or of its free bytes (2)."""

    def values(snapshot: Snapshot) -> Iterable[Value]:
        try:
            return [] if snapshot.data is None else [((), shutil.disk_usage(snapshot.data)[index])]
        except OSError:  # gone, or not reachable now: nothing is known
            return []

    return values


def _counts(
    count: Callable[[Iterable[RunSummary]], Mapping[Any, int]], words: Iterable[str]
) -> Read:
    """Return a reader of counts over all runs by word, also where a count is 0."""
    known = tuple(words)

    def values(snapshot: Snapshot) -> Iterable[Value]:
        counts = count(snapshot.runs)
        return [((str(word),), counts.get(word, 0)) for word in known]

    return values


def _each(read: Callable[[RunSummary], float | None]) -> Read:
    """Return a reader of a number of each run in which that number is known."""

    def values(snapshot: Snapshot) -> Iterable[Value]:
        pairs = ((run.name, read(run)) for run in snapshot.labelled)
        return [((run,), value) for run, value in pairs if value is not None]

    return values


def _each_by(count: Callable[[RunSummary], Mapping[Any, int]], words: Iterable[str]) -> Read:
    """Return a reader of counts of each run by word, also where a count is 0."""
    known = tuple(words)

    def values(snapshot: Snapshot) -> Iterable[Value]:
        for run in snapshot.labelled:
            counts = count(run)
            yield from (((run.name, str(word)), counts.get(word, 0)) for word in known)

    return values


def _rules(snapshot: Snapshot) -> Iterable[Value]:
    for run in snapshot.labelled:
        for rule, counts in run.rules.items():
            yield from (((run.name, rule, severity), count) for severity, count in counts.items())


def _messages(snapshot: Snapshot) -> Iterable[Value]:
    for target in snapshot.targets:
        yield from (
            ((target.name, str(one)), target.messages.get(one, 0)) for one in DeliveryResult
        )


def _age(snapshot: Snapshot) -> Iterable[Value]:
    for target in snapshot.targets:
        if target.succeeded_s is not None:
            yield (target.name,), max(time.time() - target.succeeded_s, 0.0)


_AGGREGATOR: Final = (
    Metric(
        "gradwatch_build_info",
        "1, with the version that runs.",
        lambda _: [((__version__,), 1)],
        ("version",),
    ),
    Metric(
        "gradwatch_ready",
        "1 if records are taken in and stored, as /readyz says, else 0.",
        _one(_is_ready),
    ),
    Metric(
        "gradwatch_start_time_seconds",
        "When this start had read the log, since the epoch.",
        _one(lambda snapshot: snapshot.engine.published.started_ns / 1e9),
    ),
    Metric(
        "gradwatch_records_total",
        "Records since the start, by what became of them: stored, lost on the way (their numbers "
        "are missing for good), or duplicate (stored before).",
        _records,
        ("outcome",),
    ),
    Metric(
        "gradwatch_stored_bytes_total",
        "Bytes of the records stored since the start.",
        _one(lambda snapshot: snapshot.engine.metrics.stored_bytes),
    ),
    Metric(
        "gradwatch_refused_total",
        "Messages and requests not taken since the start, by the kind of fault.",
        _refused,
        ("kind",),
    ),
    Metric(
        "gradwatch_log_rows_missing",
        "Rows of the log that this start found missing, at the least.",
        _one(_missing),
    ),
    Metric(*LOG_WRITE, histogram=lambda snapshot: snapshot.engine.metrics.log_write),
    Metric(*INGEST_LAG, histogram=lambda snapshot: snapshot.engine.metrics.lag),
    Metric(
        "gradwatch_disk_size_bytes",
        "Size of the file system that the data directory is on.",
        _disk(0),
    ),
    Metric("gradwatch_disk_free_bytes", "What is free of it.", _disk(2)),
    Metric("gradwatch_budget_limit", "What each budget is set to.", _limits, ("budget",)),
    Metric(
        "gradwatch_budget_used",
        "What is used of it; where each has his own, what the one uses that uses most; absent "
        "where it is a time.",
        _use(lambda use: use.used),
        ("budget",),
    ),
    Metric(
        "gradwatch_budget_evicted_total",
        "What went to make room, since the start.",
        _use(lambda use: use.num_evicted),
        ("budget",),
    ),
    Metric(
        "gradwatch_budget_refused_total",
        "What was not taken, or had to wait, since the start.",
        _use(lambda use: use.num_refused),
        ("budget",),
    ),
)

_RUNS: Final = (
    Metric(
        "gradwatch_runs",
        "Runs in memory by status.",
        _counts(lambda runs: Counter(run.status for run in runs), Status),
        ("status",),
    ),
    Metric(
        "gradwatch_runs_in_phase",
        "Runs in memory by phase.",
        _counts(lambda runs: Counter(run.phase for run in runs), Phase),
        ("phase",),
    ),
    Metric(
        "gradwatch_runs_left_out",
        "Runs without numbers of their own, beyond 50.",
        _one(lambda snapshot: len(snapshot.runs) - len(snapshot.labelled)),
    ),
    Metric(
        "gradwatch_ranks",
        "Ranks of the current attempts of all runs by state.",
        _counts(lambda runs: sum((Counter(run.ranks) for run in runs), Counter()), RankState),
        ("state",),
    ),
    Metric(
        "gradwatch_alerts_firing",
        "Firing alerts by severity, of all runs that have not ended.",
        _counts(
            lambda runs: sum((Counter(run.firing) for run in runs if not run.has_ended), Counter()),
            Severity,
        ),
        ("severity",),
    ),
    Metric(
        "gradwatch_run_status",
        "1 for the status that the run has, 0 for the others.",
        _each_by(lambda run: {run.status: 1}, Status),
        ("run", "status"),
    ),
    Metric(
        "gradwatch_run_phase",
        "1 for the phase that the run is in, 0 for the others.",
        _each_by(lambda run: {run.phase: 1}, Phase),
        ("run", "phase"),
    ),
)

_RUN_NUMBERS: Final[Mapping[str, tuple[str, Callable[[RunSummary], float | None]]]] = {
    "attempt": (
        "Number of the current attempt, from 1: it rises when a job is started again.",
        lambda run: run.attempt,
    ),
    "step": (
        "The last step that is complete, or was closed without ranks that are missing.",
        lambda run: None if run.step < 0 else run.step,
    ),
    "step_time_seconds": (
        "Time from the step before to the last one, by the slowest rank.",
        lambda run: run.step_time_s,
    ),
    "usual_step_time_seconds": (
        "Median of the newest gaps between steps; absent while they are too few.",
        lambda run: run.usual_step_time_s,
    ),
    "last_record_timestamp_seconds": (
        "When the run was last heard of, since the epoch.",
        lambda run: run.updated_ns / 1e9,
    ),
    "gradient_norm": (
        (
            "L2 norm of the whole gradient at the last step, over all layers and ranks; NaN or Inf "
            "where it was; absent where it is not known."
        ),
        lambda run: run.norm,
    ),
    "nonfinite_steps": (
        "Steps of the rolling window whose gradient norm was NaN or Inf.",
        lambda run: run.nonfinite_steps,
    ),
    "loss": ("Loss at the last step: the mean over the ranks that gave one.", lambda run: run.loss),
    "learning_rate": (
        "Learning rate at the last step, the largest that any rank gave.",
        lambda run: run.lr,
    ),
    "score": ("Health score of the last step, from 0 to 1.", lambda run: run.score),
    "lowest_score": (
        "The lowest health score of the rolling window.",
        lambda run: run.lowest_score,
    ),
}
"""Gauge of each run to its description and number."""

_RUN_COUNTS: Final = (
    Metric(
        "gradwatch_run_ranks",
        "Ranks of the current attempt by state.",
        _each_by(lambda run: run.ranks, RankState),
        ("run", "state"),
    ),
    Metric(
        "gradwatch_run_alerts_firing",
        "Firing alerts of the current attempt by severity.",
        _each_by(lambda run: run.firing, Severity),
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
        _each_by(lambda run: run.records, ("stored", "lost")),
        ("run", "outcome"),
    ),
)

# The names of targets are those of the settings, so they are few.
_NOTIFICATIONS: Final = (
    Metric(
        "gradwatch_notifications_total",
        "Messages to targets since the start, by what became of each attempt.",
        _messages,
        ("target", "result"),
    ),
    Metric(
        "gradwatch_notifications_pending",
        "Alerts that a target is still to be told of.",
        lambda snapshot: [((target.name,), target.num_pending) for target in snapshot.targets],
        ("target",),
    ),
    Metric(
        "gradwatch_notifications_last_success_age_seconds",
        "Time since a message was delivered to a target that ever had one.",
        _age,
        ("target",),
    ),
)

METRICS: Final = (
    *_AGGREGATOR,
    *_RUNS,
    *(
        Metric(f"gradwatch_run_{name}", what, _each(read), ("run",))
        for name, (what, read) in _RUN_NUMBERS.items()
    ),
    *_RUN_COUNTS,
    *_NOTIFICATIONS,
)
"""Every metric of gradwatch."""
