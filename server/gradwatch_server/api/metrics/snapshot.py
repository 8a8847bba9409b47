"""Source of the metrics: published snapshots, never the engine's own state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gradwatch_server.api.listing import RunListing
from gradwatch_server.core.views.runs import RunSummary
from gradwatch_server.engine.engine import Engine
from gradwatch_server.notify.notifications import Notifications
from gradwatch_server.notify.status import TargetStatus

METRIC_RUNS: Final = 50
"""Runs with numbers of their own: each is some 35 time series, which Prometheus keeps for weeks."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that metrics are made of at one moment.

    Args:
        engine: Its counters and what it published.
        refused: Kind to the number of requests that were none.
        data: The data directory, None where there is none.
        runs: All runs, the last one heard of first.
        labelled: Those that have numbers of their own.
        targets: How each target of notifications is.
    """

    engine: Engine
    refused: Mapping[str, int]
    data: Path | None
    runs: Sequence[RunSummary]
    labelled: Sequence[RunSummary]
    targets: Sequence[TargetStatus]


async def take_snapshot(
    engine: Engine,
    listing: RunListing,
    refused: Mapping[str, int],
    data: Path | None,
    notifications: Notifications,
) -> Snapshot:
    """Return how all is, in the event loop of the listing.

    Args:
        engine: Publishes what metrics are made of.
        listing: Its runs in short.
        refused: Kind to the number of requests that were none.
        data: The data directory, None where there is none.
        notifications: What tells the targets of alerts.
    """
    runs = await listing.all()
    labelled = choose_labelled(runs, METRIC_RUNS)
    return Snapshot(engine, refused, data, runs, labelled, notifications.statuses())


def choose_labelled(runs: Sequence[RunSummary], most: int) -> Sequence[RunSummary]:
    """Return the runs that get numbers of their own: those that live first, then the last ended.

    Prometheus keeps each as time series of its own, so that they have to be few.

    Args:
        runs: All runs, the last one heard of first.
        most: How many are wanted at most.
    """
    return sorted(runs, key=lambda own: own.has_ended)[:most]
