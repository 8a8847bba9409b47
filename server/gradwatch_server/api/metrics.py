"""`/metrics` for Prometheus: what the engine counts, and how the runs are when one asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from gradwatch_server.api.summaries import Summaries, Summary
from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.engine.engine import Engine
from gradwatch_server.engine.metrics import EngineMetrics
from gradwatch_server.engine.published import PublishedState
from gradwatch_wire.health import Phase, RankState, Severity, Status

MAX_LABELLED_RUNS: Final = 50
"""Runs with numbers of their own, the last active ones: Prometheus keeps each as a time series."""

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class EngineCollector(Collector):
    """Makes the metrics of an engine, of what it publishes, and of its port."""

    def __init__(self, engine: Engine, summaries: Summaries, refused: Mapping[str, int]) -> None:
        self._engine = engine
        self._summaries = summaries
        self._refused = refused

    def collect(self) -> Iterator[Metric]:
        """Yield each metric as it stands."""
        engine, published = self._engine, self._engine.published
        yield from _records(engine.metrics, published)
        refused = CounterMetricFamily(
            "gradwatch_refused",
            "Messages and requests not taken, by the kind of fault.",
            labels=["kind"],
        )
        for kind, count in (dict(engine.refused) | dict(self._refused)).items():
            refused.add_metric([kind], count)
        yield refused
        yield from _budgets(engine.budget_use)
        yield from engine.metrics.log_write.collect()
        yield from engine.metrics.lag.collect()
        ready = published.fault is None and engine.is_alive()
        yield GaugeMetricFamily(
            "gradwatch_ready", "1 if records are taken in and stored, as /readyz.", int(ready)
        )
        yield GaugeMetricFamily(
            "gradwatch_entries_missing",
            "Entries of the log that this start found missing, at the least.",
            published.loss.entries if published.loss is not None else 0,
        )
        yield from _runs(self._summaries.newest)


def _records(metrics: EngineMetrics, published: PublishedState) -> Iterator[Metric]:
    records = CounterMetricFamily(
        "gradwatch_records", "Records since the start, by what became of them.", labels=["outcome"]
    )
    records.add_metric(["stored"], metrics.stored)
    records.add_metric(["lost"], metrics.lost)
    records.add_metric(["duplicate"], published.num_duplicates)
    yield records
    yield CounterMetricFamily(
        "gradwatch_stored_bytes",
        "Bytes of the records stored since the start.",
        metrics.stored_bytes,
    )


def _budgets(use: BudgetUse) -> Iterator[Metric]:
    by = ("budget",)
    limit = GaugeMetricFamily("gradwatch_budget_limit", "What may be used.", labels=by)
    used = GaugeMetricFamily(
        "gradwatch_budget_used", "What is used; by the one with most where each has his.", labels=by
    )
    evicted = CounterMetricFamily(
        "gradwatch_budget_evicted", "What went to make room, since the start.", labels=by
    )
    refused = CounterMetricFamily(
        "gradwatch_budget_refused", "What was not taken or had to wait, since the start.", labels=by
    )
    for name in use:
        own = use[name]
        limit.add_metric([name], use.limit(name))
        if own.used is not None:
            used.add_metric([name], own.used)
        evicted.add_metric([name], own.num_evicted)
        refused.add_metric([name], own.num_refused)
    yield from (limit, used, evicted, refused)


def _runs(runs: Sequence[Summary]) -> Iterator[Metric]:
    """Yield what there is of the runs, given the last one heard of first."""
    yield _by(
        "gradwatch_runs",
        "Runs by status.",
        "status",
        Counter(own.status for own in runs),
        Status,
    )
    ranks: Counter[str] = sum((Counter(own.ranks) for own in runs), Counter())
    yield _by(
        "gradwatch_ranks", "Ranks of the current attempts by state.", "state", ranks, RankState
    )
    phases = Counter(own.phase for own in runs)
    yield _by("gradwatch_runs_in_phase", "Runs by phase.", "phase", phases, Phase)
    live = [own.firing for own in runs if own.phase in (Phase.WAITING, Phase.RUNNING)]
    yield _by(
        "gradwatch_alerts_firing",
        "Firing alerts by severity, of runs that have not ended.",
        "severity",
        sum(map(Counter, live), Counter()),
        Severity,
    )
    yield from _labelled(runs[:MAX_LABELLED_RUNS])


def _by(name: str, text: str, label: str, counts: Counter[Any], values: Any) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for value in values:
        family.add_metric([str(value)], counts[value])
    return family


def _labelled(runs: Sequence[Summary]) -> Iterator[Metric]:
    newest = f"of the {MAX_LABELLED_RUNS} runs last heard of."
    score = GaugeMetricFamily("gradwatch_run_score", f"Health score {newest}", labels=["run"])
    lost = GaugeMetricFamily("gradwatch_run_records_lost", f"Records lost {newest}", labels=["run"])
    for own in runs:
        lost.add_metric([own.view.name], own.view.lost)
        if own.score is not None:
            score.add_metric([own.view.name], own.score)
    yield score
    yield lost


class Metrics:
    """All metrics of an engine in a registry of their own.

    Args:
        engine: Is counted.
        summaries: Its runs in short.
        refused: Kind to the number of requests that were none.
        others: What makes further metrics.
    """

    def __init__(
        self,
        engine: Engine,
        summaries: Summaries,
        refused: Mapping[str, int],
        others: Sequence[Collector] = (),
    ) -> None:
        self._registry = CollectorRegistry()
        for collector in (EngineCollector(engine, summaries, refused), *others):
            self._registry.register(collector)

    def render(self) -> bytes:
        """Return them in the text format of Prometheus."""
        return generate_latest(self._registry)
