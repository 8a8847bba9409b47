"""Metrics sent to an OpenTelemetry collector: the same table as `/metrics`, by OTLP over HTTP."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from gradwatch_server.api.metrics.metric import Metric, Type
from gradwatch_server.api.metrics.otlp_exporter import Exporter
from gradwatch_server.api.metrics.snapshot import Snapshot
from gradwatch_server.api.metrics.source import Source
from gradwatch_server.api.metrics.table import METRICS
from gradwatch_wire import __version__

UNITS: Final = {"seconds": "s", "bytes": "By", "": "1"}
"""The units of the table as OpenTelemetry writes them (UCUM)."""

LOOK_S: Final = 10.0
"""How long a snapshot may take: the event loop may be busy."""

STOP_S: Final = 3.0
"""How long the last export may take at the end."""

MAX_AGE_S: Final = 0.5
"""How old a snapshot may be: less than the shortest interval, more than an export takes to read."""

Look = Callable[[], Snapshot | None]
Callback = Callable[[CallbackOptions], Iterable[Observation]]


class OtlpPush:
    """Sends all metrics every few seconds, in a thread of the library's.

    Args:
        endpoint: Base address of the collector.
        interval_s: How often.
        data: The data directory, by which this aggregator is told from others of this machine.

    Raises:
        GradwatchError: If the headers in the environment are malformed.
    """

    def __init__(self, endpoint: str, interval_s: float, data: Path) -> None:
        # Headers and answers may be in what the library logs; the exporter tells what fails.
        logging.getLogger("opentelemetry").propagate = False
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
        self._exporter = Exporter(endpoint)
        self._interval_s = interval_s
        self._resource = _resource(data)
        self._provider: MeterProvider | None = None

    def start(self, source: Source) -> None:
        """Begin to send what the source gives; called in its event loop."""
        look = _Recent(source, asyncio.get_running_loop(), self._exporter.note_failure)
        reader = PeriodicExportingMetricReader(self._exporter, self._interval_s * 1e3)
        self._provider = MeterProvider(
            metric_readers=[reader], resource=self._resource, shutdown_on_exit=False
        )
        meter = self._provider.get_meter("gradwatch", __version__)
        for metric in METRICS:
            _observe(meter, metric, look)

    def stop(self) -> None:
        """Send them a last time, and end in a few seconds at most; not called in the event loop."""
        if self._provider is not None:
            self._provider.shutdown(timeout_millis=STOP_S * 1e3)


class _Recent:
    """One snapshot for all metrics of an export, which the library reads one after another."""

    def __init__(
        self, source: Source, loop: asyncio.AbstractEventLoop, told: Callable[[str], None]
    ) -> None:
        self._source = source
        self._loop = loop
        self._told = told
        self._snapshot: Snapshot | None = None
        self._taken_s = -math.inf

    def __call__(self) -> Snapshot | None:
        """Return how all is, or was a moment ago; None if that cannot be known now."""
        if time.monotonic() - self._taken_s > MAX_AGE_S:
            self._snapshot = self._take()
            self._taken_s = time.monotonic()
        return self._snapshot

    def _take(self) -> Snapshot | None:
        looking = asyncio.run_coroutine_threadsafe(self._source.look(), self._loop)
        try:
            return looking.result(LOOK_S)
        except TimeoutError:
            looking.cancel()
            self._told(f"the aggregator did not look at its own metrics within {LOOK_S:g} s")
            return None


def _observe(meter: Meter, metric: Metric, look: Look) -> None:
    """Make the instruments of a metric."""
    unit = UNITS[metric.unit]
    if metric.buckets is not None:
        # Histograms cannot be observed: there is no instrument for it.
        callbacks: list[Callback] = [_buckets(metric, look, total=True)]
        meter.create_observable_counter(f"{metric.name}_sum", callbacks, unit, metric.what)
        callbacks = [_buckets(metric, look, total=False)]
        meter.create_observable_counter(f"{metric.name}_count", callbacks, "1", metric.what)
    elif metric.type is Type.COUNTER:
        name = metric.name.removesuffix("_total")
        meter.create_observable_counter(name, [_values(metric, look)], unit, metric.what)
    else:
        meter.create_observable_gauge(metric.name, [_values(metric, look)], unit, metric.what)


def _values(metric: Metric, look: Look) -> Callback:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        if (snapshot := look()) is not None:
            for labels, value in metric.read(snapshot):
                yield Observation(value, dict(zip(metric.labels, labels, strict=True)))

    return observe


def _buckets(metric: Metric, look: Look, *, total: bool) -> Callback:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        assert metric.buckets is not None  # noqa: S101 - a histogram has them
        if (snapshot := look()) is not None:
            own = metric.buckets(snapshot)
            yield Observation(own.total if total else own.counts[-1][1])

    return observe


def _resource(data: Path) -> Resource:
    """Say which aggregator this is; what OTEL_RESOURCE_ATTRIBUTES says goes before it."""
    where = f"{socket.gethostname()}:{data.resolve()}"
    own: dict[str, Any] = {
        "service.name": "gradwatch",
        "service.version": __version__,
        "service.instance.id": str(uuid.uuid5(uuid.NAMESPACE_URL, where)),
    }
    return Resource(own).merge(OTELResourceDetector().detect())
