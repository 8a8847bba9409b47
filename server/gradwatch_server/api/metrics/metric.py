"""The definition of one metric: its description, and how it is read from a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from prometheus_client import Histogram

from gradwatch_server.api.metrics.snapshot import Snapshot

Value: TypeAlias = tuple[tuple[str, ...], float]
"""The values of the labels in their order, and the number."""


def nothing(_: Snapshot) -> Iterable[Value]:
    """Return no value: those of a histogram are in its buckets."""
    return ()


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Args:
        name: As Prometheus shows it: with the unit at its end, that of a counter with `_total`.
        what: What it is, a sentence.
        read: Returns the values there are in a snapshot.
        labels: Their names.
        histogram: Returns the histogram of the engine that has the values; None of other types.
    """

    name: str
    what: str
    read: Callable[[Snapshot], Iterable[Value]] = nothing
    labels: tuple[str, ...] = ()
    histogram: Callable[[Snapshot], Histogram] | None = None

    @property
    def type(self) -> str:
        """Prometheus' word for the type."""
        if self.histogram is not None:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"


def one(value: float | None) -> Iterable[Value]:
    """Return the value of a metric without labels, nothing if it is not known."""
    return () if value is None else (((), value),)
