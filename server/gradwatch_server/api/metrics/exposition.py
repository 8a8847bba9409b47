"""`/metrics` in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client import Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from gradwatch_server.api.metrics.definitions import METRICS
from gradwatch_server.api.metrics.metric import Metric, Snapshot

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

_PROCESS: Final = ProcessCollector(registry=None)
"""Memory, processor time and open files, under the names that Prometheus' clients share."""


class _Families(Collector):
    """All metrics as they stand in a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Family]:
        for metric in METRICS:
            yield _family(metric, self._snapshot)
        yield from _PROCESS.collect()


def render(snapshot: Snapshot) -> bytes:
    return generate_latest(_Families(snapshot))


def _family(metric: Metric, snapshot: Snapshot) -> Family:
    if metric.histogram is not None:
        return _without_created(metric.histogram(snapshot))
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.what, labels=metric.labels)
    for labels, value in metric.read(snapshot):
        family.add_metric(labels, value)
    return family


def _without_created(histogram: Histogram) -> Family:
    """Return the family of a histogram without the time of its making, a metric of its own."""
    (family,) = histogram.collect()
    family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return family
