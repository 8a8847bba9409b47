"""`/metrics` in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from gradwatch_server.api.metrics.metric import Metric, Type
from gradwatch_server.api.metrics.snapshot import Snapshot
from gradwatch_server.api.metrics.table import METRICS

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST


class Exposition(Collector):
    """Renders all metrics.

    Args:
        look: Returns what they are read from.
    """

    def __init__(self, look: Callable[[], Snapshot]) -> None:
        self._look = look
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def describe(self) -> tuple[()]:
        """Name none beforehand: that would read them."""
        return ()

    def collect(self) -> Iterator[Family]:
        """Yield each metric as it stands."""
        snapshot = self._look()
        for metric in METRICS:
            yield _family(metric, snapshot)

    def render(self) -> bytes:
        """Return them in the text format of Prometheus."""
        return generate_latest(self._registry)


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
