"""Definition of one metric, and the snapshot from which its values are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from prometheus_client import Histogram

from gradwatch_server.core.views.runs import RunSummary
from gradwatch_server.engine.engine import Engine
from gradwatch_server.notify.status import TargetStatus

METRIC_RUNS: Final = 50
"""Runs with numbers of their own: each is some 35 time series, which Prometheus keeps for weeks."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Published state at one moment, never the engine's own.

    Args:
        data: The data directory, None where there is none.
    """

    engine: Engine
    refused: Mapping[str, int]
    data: Path | None
    runs: Sequence[RunSummary]
    targets: Sequence[TargetStatus]

    @property
    def labelled(self) -> Sequence[RunSummary]:
        """Runs with numbers of their own: those that live first, then the last ended."""
        return sorted(self.runs, key=lambda run: run.has_ended)[:METRIC_RUNS]


Value: TypeAlias = tuple[tuple[str, ...], float]
"""Values of the labels in their order, and the number."""

Read: TypeAlias = Callable[[Snapshot], Iterable[Value]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Args:
        name: As Prometheus shows it: with the unit at its end, that of a counter with `_total`.
        read: Returns the values in a snapshot; of a histogram the engine has them.
        histogram: Returns the histogram of the engine; None of other types.
    """

    name: str
    what: str
    read: Read = lambda _: ()
    labels: tuple[str, ...] = ()
    histogram: Callable[[Snapshot], Histogram] | None = None

    @property
    def type(self) -> str:
        if self.histogram is not None:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"
