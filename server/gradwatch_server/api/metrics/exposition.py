"""`/metrics` in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from gradwatch_server.api.metrics.metric import Metric, Type
from gradwatch_server.api.metrics.snapshot import Snapshot
from gradwatch_server.api.metrics.table import METRICS

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class _Families(Collector):
    """All metrics as they stand in a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            yield _family(metric, self._snapshot)


def render(snapshot: Snapshot) -> bytes:
    """Return all metrics in the text format of Prometheus."""
    return generate_latest(_Families(snapshot))


def _family(metric: Metric, snapshot: Snapshot) -> Family:
    if metric.buckets is not None:
        buckets = metric.buckets(snapshot)
        histogram = HistogramMetricFamily(metric.name, metric.what)
        histogram.add_metric((), list(buckets.counts), buckets.total)
        return histogram
    kind = CounterMetricFamily if metric.type is Type.COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.what, labels=metric.labels)
    for labels, value in metric.read(snapshot):
        family.add_metric(labels, value)
    return family
