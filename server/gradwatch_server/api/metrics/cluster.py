"""Metrics of a node of a cluster: what it owns, and what it knows of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gradwatch_server.api.metrics.metric import Metric, Value, one
from gradwatch_server.api.metrics.snapshot import NodeNumbers, Snapshot


def _number(read: Callable[[NodeNumbers], float]) -> Callable[[Snapshot], Iterable[Value]]:
    """Return what reads a number of a node; there is none of a single process."""
    return lambda snapshot: one(None if snapshot.node is None else read(snapshot.node))


def _epochs(snapshot: Snapshot) -> Iterable[Value]:
    epochs = {} if snapshot.node is None else snapshot.node.epochs
    return [((str(partition),), epoch) for partition, epoch in epochs.items()]


def _forwarded(snapshot: Snapshot) -> Iterable[Value]:
    if snapshot.node is not None:
        yield ("sent",), snapshot.node.num_forwarded
        yield ("dropped",), snapshot.node.num_dropped


METRICS: Final = (
    Metric(
        "gradwatch_cluster_nodes",
        "Nodes of the cluster that have a lease, as this one knows it.",
        _number(lambda node: node.num_nodes),
    ),
    Metric(
        "gradwatch_partitions_without_owner",
        "Partitions of the cluster that no node owns, as this one knows it.",
        _number(lambda node: node.num_without_owner),
    ),
    Metric(
        "gradwatch_partition_epoch",
        "Epoch of each partition that this node owns: it grows whenever one is taken.",
        _epochs,
        ("partition",),
    ),
    Metric(
        "gradwatch_partition_engines",
        "Partitions of this node on which an engine runs: those with runs.",
        _number(lambda node: node.num_engines),
    ),
    Metric(
        "gradwatch_takeovers_total",
        "Engines that began to run on a partition that this node acquired.",
        _number(lambda node: node.num_takeovers),
    ),
    Metric(
        "gradwatch_takeover_seconds_total",
        "Time that these took, from the acquisition, or the first message, until they ran.",
        _number(lambda node: node.takeovers_s),
    ),
    Metric(
        "gradwatch_forwarded_messages_total",
        "Messages of clients for a partition of another node: sent to it, or dropped as they "
        "could not be, which clients send again.",
        _forwarded,
        ("result",),
    ),
    Metric(
        "gradwatch_waiting_bytes",
        "Messages that wait for the engine of a partition of this node.",
        _number(lambda node: node.waiting_bytes),
    ),
    Metric(
        "gradwatch_clock_difference_seconds",
        "How far the clock of that node is off which is furthest from the one of this node.",
        _number(lambda node: node.clock_difference_s),
    ),
)
