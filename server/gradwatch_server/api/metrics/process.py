"""Metrics of the aggregator's process, under the names that Prometheus' clients share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import ProcessCollector

from gradwatch_server.api.metrics.metric import Metric, Type, Value, one
from gradwatch_server.api.metrics.snapshot import Snapshot

_collector: Final = ProcessCollector(registry=None)


def _read(name: str) -> Callable[[Snapshot], Iterable[Value]]:
    """Return what reads a metric of the process; there is none where there is no /proc."""

    def values(_: Snapshot) -> Iterable[Value]:
        samples = (sample for family in _collector.collect() for sample in family.samples)
        return one(next((sample.value for sample in samples if sample.name == name), None))

    return values


def _metric(name: str, what: str, type_: Type = Type.GAUGE) -> Metric:
    stem = name.removesuffix("_total")
    unit = next((unit for unit in ("seconds", "bytes") if stem.endswith(unit)), "")
    return Metric(name, type_, f"{what} On Linux.", _read(name), unit=unit)


METRICS: Final = (
    _metric(
        "process_cpu_seconds_total", "Processor time of the process since it began.", Type.COUNTER
    ),
    _metric("process_resident_memory_bytes", "Memory of the process that is in use."),
    _metric("process_virtual_memory_bytes", "Address space of the process."),
    _metric("process_start_time_seconds", "When the process began, since the epoch."),
    _metric("process_open_fds", "Files and connections that are open."),
    _metric("process_max_fds", "How many may be open."),
)
