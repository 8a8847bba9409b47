"""What the subjects of the simulated cluster are called."""

from __future__ import annotations

from typing import Final

NAMESPACE: Final = "gw"
"""What all of them begin with."""


def log_of(partition: int) -> str:
    """Return the subject of a partition's log."""
    return f"{NAMESPACE}.log.{partition}"


def inbox_of(partition: int) -> str:
    """Return the subject of what is for the owner of a partition."""
    return f"{NAMESPACE}.ingest.{partition}"


def partition_in(subject: str) -> int:
    """Return the partition that a subject is of."""
    return int(subject.rpartition(".")[2])
