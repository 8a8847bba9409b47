"""What the metrics are read from: published snapshots, never the engine's own state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradwatch_server.api.summaries import Summaries, Summary
from gradwatch_server.engine.view import EngineView
from gradwatch_server.notify.notifications import Notifications
from gradwatch_server.notify.status import TargetStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNumbers:
    """What is counted of a node of a cluster.

    Args:
        num_nodes: Nodes that have a lease.
        num_without_owner: Partitions that none of them owns.
        epochs: Partition to epoch of those that it owns.
        num_engines: Partitions of it on which an engine runs.
        num_takeovers: Engines that it started on a partition that it acquired.
        takeovers_s: Time that these took, seconds.
        num_forwarded: Messages sent to other nodes.
        num_dropped: Messages that could not be.
        waiting_bytes: Bytes of messages that wait for its engines.
        clock_difference_s: How far the clock of another node is off, seconds.
    """

    num_nodes: int
    num_without_owner: int
    epochs: Mapping[int, int]
    num_engines: int
    num_takeovers: int
    takeovers_s: float
    num_forwarded: int
    num_dropped: int
    waiting_bytes: int
    clock_difference_s: float


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
        node: What is counted of a node, None of a single process.
    """

    engine: EngineView
    refused: Mapping[str, int]
    data: Path | None
    runs: Sequence[Summary]
    labelled: Sequence[Summary]
    targets: Sequence[TargetStatus]
    node: NodeNumbers | None = None


async def take_snapshot(
    engine: EngineView,
    summaries: Summaries,
    refused: Mapping[str, int],
    data: Path | None,
    notifications: Notifications,
    node: Callable[[], NodeNumbers] | None,
) -> Snapshot:
    """Return how all is, in the event loop of the summaries.

    Args:
        engine: Publishes what metrics are made of.
        summaries: Its runs in short.
        refused: Kind to the number of requests that were none.
        data: The data directory, None where there is none.
        notifications: What tells the targets of alerts.
        node: Returns what is counted of a node of a cluster; None for a single process.
    """
    runs = await summaries.all()
    use = engine.budget_use
    labelled = choose_labelled(runs, use.limits.metric_runs)
    use["metric_runs"].used = len(labelled)
    numbers = None if node is None else node()
    return Snapshot(engine, refused, data, runs, labelled, notifications.statuses(), numbers)


def choose_labelled(runs: Sequence[Summary], most: int) -> Sequence[Summary]:
    """Return the runs that get numbers of their own: those that live first, then the last ended.

    Prometheus keeps each as time series of its own, so that they have to be few.

    Args:
        runs: All runs, the last one heard of first.
        most: How many are wanted at most.
    """
    return sorted(runs, key=lambda own: own.has_ended)[:most]
