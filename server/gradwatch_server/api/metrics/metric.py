"""The definition of one metric: what is said of it, and how it is read from a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from gradwatch_server.api.metrics.snapshot import Snapshot


class Type(StrEnum):
    """What Prometheus calls the type."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Buckets(NamedTuple):
    """The value of a histogram.

    Args:
        counts: Upper limit, as Prometheus writes it, and how many were not above it; `+Inf` last.
        total: The sum of all.
    """

    counts: tuple[tuple[str, float], ...]
    total: float


Value: TypeAlias = tuple[tuple[str, ...], float]
"""The values of the labels in their order, and the number."""


def nothing(_: Snapshot) -> Iterable[Value]:
    """Return no value: what a histogram has is in its buckets."""
    return ()


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Args:
        name: As Prometheus shows it, that of a counter with `_total`.
        type: What Prometheus calls it.
        what: What it is, a sentence.
        read: Returns the values there are in a snapshot.
        labels: Their names.
        unit: `seconds`, `bytes`, or empty for a count, a share and what has the model's own unit.
        buckets: Returns what a histogram has; None of all others.
    """

    name: str
    type: Type
    what: str
    read: Callable[[Snapshot], Iterable[Value]] = nothing
    labels: tuple[str, ...] = ()
    unit: str = ""
    buckets: Callable[[Snapshot], Buckets] | None = None


def one(value: float | None) -> Iterable[Value]:
    """Return the value of a metric without labels, nothing if it is not known."""
    return () if value is None else (((), value),)
