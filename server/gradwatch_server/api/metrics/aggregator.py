"""Metrics of the aggregator itself: what it took in, what it refused, how it is."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from typing import Final

from gradwatch_server.api.metrics.metric import Metric, Value, one
from gradwatch_server.api.metrics.snapshot import Snapshot
from gradwatch_server.budgets import BudgetUse, Use
from gradwatch_server.engine.metrics import INGEST_LAG, LOG_WRITE
from gradwatch_wire import __version__


def _is_ready(snapshot: Snapshot) -> Iterable[Value]:
    engine = snapshot.engine
    return one(int(engine.published.fault is None and engine.is_alive()))


def _records(snapshot: Snapshot) -> Iterable[Value]:
    counts = snapshot.engine.metrics
    yield ("stored",), counts.stored
    yield ("lost",), counts.lost
    yield ("duplicate",), snapshot.engine.published.num_duplicates


def _refused(snapshot: Snapshot) -> Iterable[Value]:
    counts = dict(snapshot.engine.refused) | dict(snapshot.refused)
    return [((kind,), count) for kind, count in counts.items()]


def _missing(snapshot: Snapshot) -> Iterable[Value]:
    loss = snapshot.engine.published.loss
    return one(0 if loss is None else loss.rows)


def _limits(snapshot: Snapshot) -> Iterable[Value]:
    use: BudgetUse = snapshot.engine.budget_use
    return [((name,), use.limit(name)) for name in use]


def _use(read: Callable[[Use], float | None]) -> Callable[[Snapshot], Iterable[Value]]:
    """Return what reads a number of each budget, of those where it is known."""

    def values(snapshot: Snapshot) -> Iterable[Value]:
        use = snapshot.engine.budget_use
        found = ((name, read(use[name])) for name in use)
        return [((name,), value) for name, value in found if value is not None]

    return values


def _disk(number: int) -> Callable[[Snapshot], Iterable[Value]]:
    """Return what reads the size of the file system (0) or what is free of it (2)."""

    def values(snapshot: Snapshot) -> Iterable[Value]:
        if snapshot.data is None:
            return ()
        try:
            return one(shutil.disk_usage(snapshot.data)[number])
        except OSError:  # gone, or not reachable now: nothing is known
            return ()

    return values


METRICS: Final = (
    Metric(
        "gradwatch_build_info",
        "1, with the version that runs.",
        lambda _: [((__version__,), 1)],
        ("version",),
    ),
    Metric(
        "gradwatch_ready",
        "1 if records are taken in and stored, as /readyz says, else 0.",
        _is_ready,
    ),
    Metric(
        "gradwatch_start_time_seconds",
        "When this start had read the log, since the epoch.",
        lambda snapshot: one(snapshot.engine.published.started_ns / 1e9),
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
        lambda snapshot: one(snapshot.engine.metrics.stored_bytes),
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
        _missing,
    ),
    Metric(
        *LOG_WRITE,
        histogram=lambda snapshot: snapshot.engine.metrics.log_write,
    ),
    Metric(
        *INGEST_LAG,
        histogram=lambda snapshot: snapshot.engine.metrics.lag,
    ),
    Metric(
        "gradwatch_disk_size_bytes",
        "Size of the file system that the data directory is on.",
        _disk(0),
    ),
    Metric(
        "gradwatch_disk_free_bytes",
        "What is free of it.",
        _disk(2),
    ),
    Metric(
        "gradwatch_budget_limit",
        "What each budget is set to.",
        _limits,
        ("budget",),
    ),
    Metric(
        "gradwatch_budget_used",
        "What is used of it; where each has his own, what the one uses that uses most; absent "
        "where it is a time.",
        _use(lambda own: own.used),
        ("budget",),
    ),
    Metric(
        "gradwatch_budget_evicted_total",
        "What went to make room, since the start.",
        _use(lambda own: own.num_evicted),
        ("budget",),
    ),
    Metric(
        "gradwatch_budget_refused_total",
        "What was not taken, or had to wait, since the start.",
        _use(lambda own: own.num_refused),
        ("budget",),
    ),
)
