"""What the subjects of the simulated cluster are called."""

from __future__ import annotations

from typing import Final

from gradwatch_server.cluster.names import Names

NAMES: Final = Names("gradwatch")


def log_of(partition: int) -> str:
    """Return the subject of a partition's log."""
    return f"{NAMES.namespace}.log.{partition}"


def partition_in(subject: str) -> int:
    """Return the partition that a subject is of."""
    return int(subject.rpartition(".")[2])
