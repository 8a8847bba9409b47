"""What a ledger is: all that a cluster keeps beside its log, of all partitions together.

`postgres/` is one. Each partition has one owner at a time, who writes it with the epoch at which it
became one; what an owner of the past writes is refused with `StorageFault.GONE`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from gradwatch_server.storage.deliveries import DeliveryLog
from gradwatch_server.storage.series_store import SeriesStore
from gradwatch_server.storage.store import AlertEventReader, AlertEvents, SavedState

PAGE_RUNS: Final = 500
"""Runs of the catalogue that are read at once."""

MAX_RUNS: Final = 20_000
"""Runs of partitions that are read at most: some 20 MB."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What an owner published of a run.

    Args:
        run: Name of the run.
        partition: Its partition.
        summary: The summary, JSON.
        updated_ns: When it was published, nanoseconds since the epoch by the owner's clock.
    """

    run: str
    partition: int
    summary: str
    updated_ns: int


class RunCatalogue(Protocol):
    """The published runs of all partitions, for any thread."""

    def get(self, run: str) -> RunSummary | None:
        """Return what was published last of a run, None if nothing is."""

    def after(self, run: str = "", most: int = PAGE_RUNS) -> list[RunSummary]:
        """Return up to *most* runs with names after one, by code points."""

    def of_partitions(self, partitions: Sequence[int]) -> list[RunSummary]:
        """Return the runs of some partitions, up to `MAX_RUNS` of them."""


class PartitionRuns(Protocol):
    """The published runs of one partition, for its owner."""

    def publish(self, summaries: Mapping[str, str], updated_ns: int) -> None:
        """Put run to summary, JSON, in place of what was published of these runs, all or none."""

    def names(self) -> list[str]:
        """Return the names of the runs of the partition that are there."""

    def withdraw(self, runs: Collection[str]) -> None:
        """Remove runs from the catalogue; those that are not there are passed over."""


class PartitionLedger(Protocol):
    """What the owner of a partition writes. Each call raises a `StorageError` if it is no more.

    As of a store: one thread writes; a call that returns has committed. One that raises because
    the connection broke may have committed all the same, and may be repeated: it then finds what
    it wrote.
    """

    @property
    def partition(self) -> int:
        """Its number."""

    @property
    def epoch(self) -> int:
        """The epoch that it is written with."""

    @property
    def alert_events(self) -> AlertEvents:
        """The events of this partition; their cursors are those of the whole cluster."""

    @property
    def state(self) -> SavedState:
        """What the next owner begins with."""

    @property
    def series(self) -> SeriesStore:
        """The curves."""

    @property
    def runs(self) -> PartitionRuns:
        """What is published of its runs."""

    def used_bytes(self) -> int:
        """Return about how much space alert events, saved state and curves of it take."""


class Ledger(Protocol):
    """The ledger of a cluster, for any thread."""

    @property
    def name(self) -> str:
        """What errors call it, without what is secret."""

    @property
    def alert_events(self) -> AlertEventReader:
        """The alert events of all partitions, without gaps in the order of their cursors."""

    @property
    def runs(self) -> RunCatalogue:
        """The runs of all partitions."""

    def check(self) -> None:
        """Make sure that it answers.

        Raises:
            StorageError: If it does not.
        """

    def take(self, partition: int, epoch: int, owner: str = "") -> PartitionLedger:
        """Begin to write a partition; whoever has it with a lower epoch is refused from now on.

        Args:
            partition: Its number.
            epoch: Higher than that of the owner before.
            owner: Tells this one from others that may have the same epoch.

        Raises:
            StorageError: If it was taken with a higher epoch, or by another owner with this one
                (`StorageFault.GONE`), or fails.
        """

    def was_taken(self, partition: int) -> bool:
        """Tell whether a partition was ever written.

        Raises:
            StorageError: If that cannot be read.
        """

    def take_deliveries(self, epoch: int, owner: str = "") -> DeliveryLog:
        """Begin to write what is kept of notifications, likewise."""

    def close(self) -> None:
        """Let it go."""
