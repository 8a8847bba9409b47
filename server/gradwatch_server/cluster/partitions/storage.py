"""What a node needs of the place where partitions are kept: a log and a ledger for all of them."""

from __future__ import annotations

from typing import Protocol

from gradwatch_server.storage.deliveries import DeliveryLog
from gradwatch_server.storage.ledger import PartitionRuns
from gradwatch_server.storage.store import AlertEventReader, Store


class PartitionStore(Store, Protocol):
    """The store of one partition."""

    @property
    def runs(self) -> PartitionRuns:
        """What is published of its runs."""


class Storage(Protocol):
    """The partitions of a cluster, for any thread."""

    @property
    def alert_events(self) -> AlertEventReader:
        """The alert events of all partitions."""

    def open(self, partition: int, epoch: int) -> PartitionStore:
        """Open a partition for writing, as the owner of an epoch.

        Raises:
            StorageError: If it cannot be used; `GONE` if there is an owner of a later epoch.
        """

    def has_entries(self, partition: int) -> bool:
        """Tell whether there is or was anything in the log of a partition.

        Raises:
            GradwatchError: If that cannot be read just now.
        """

    def open_deliveries(self, epoch: int) -> DeliveryLog:
        """Open what is kept of notifications for writing, as the one who sends them in an epoch.

        Raises:
            StorageError: As of `open`.
        """

    def close(self) -> None:
        """Let go of what is open."""
