"""The store of a cluster: a log in a replicated stream, and a ledger for all else."""

from __future__ import annotations

from collections.abc import Callable

from gradwatch_server.nats.stream import Stream
from gradwatch_server.storage.checkpoints import load_position
from gradwatch_server.storage.deliveries import DeliveryLog
from gradwatch_server.storage.jetstream.faults import storage_errors
from gradwatch_server.storage.jetstream.log import JetStreamLog
from gradwatch_server.storage.jetstream.records import JetStreamRecords
from gradwatch_server.storage.ledger import Ledger, PartitionLedger, PartitionRuns, RunCatalogue
from gradwatch_server.storage.series_store import SeriesStore
from gradwatch_server.storage.store import (
    AlertEventReader,
    AlertEvents,
    Loss,
    SavedState,
    StorageError,
)


class ReplicatedStore:
    """One partition, as the owner of an epoch writes it: a `Store`.

    Args:
        log: Its entries.
        ledger: All else of it.
        name: What errors call it.
    """

    def __init__(self, log: JetStreamLog, ledger: PartitionLedger, name: str) -> None:
        self._log = log
        self._ledger = ledger
        self._name = name
        self._records = JetStreamRecords(log.contents)
        self._found_offset = log.last_offset

    @property
    def name(self) -> str:
        """Which partition of which cluster."""
        return self._name

    @property
    def log(self) -> JetStreamLog:
        """The entries."""
        return self._log

    @property
    def alert_events(self) -> AlertEvents:
        """What readers are told of alerts."""
        return self._ledger.alert_events

    @property
    def state(self) -> SavedState:
        """What the next owner begins with."""
        return self._ledger.state

    @property
    def series(self) -> SeriesStore:
        """The curves."""
        return self._ledger.series

    @property
    def runs(self) -> PartitionRuns:
        """What is published of its runs."""
        return self._ledger.runs

    @property
    def records(self) -> JetStreamRecords:
        """The statistics in the log."""
        return self._records

    def used_bytes(self) -> int:
        """Return about how much space all of it takes, once for all copies."""
        return self._log.used_bytes() + self._ledger.used_bytes()

    def vacuum(self, num_bytes: int) -> bool:  # noqa: ARG002 - JetStream and PostgreSQL do it
        """Do nothing: both give back space by themselves."""
        return False

    def check(self) -> None:
        """Do nothing: each write finds out whether another node has taken over."""

    def find_loss(self) -> Loss | None:
        """Say how many entries the log lacks that the saved state stands for."""
        position = load_position(self._ledger.state)
        missing = 0 if position is None else position.offset - self._found_offset
        if missing <= 0:
            return None
        text = (
            f"the log of {self._name} ends at entry {self._found_offset}, and what is saved in the "
            f"ledger stands for {position.offset if position else 0}: the newest {missing} are "
            "lost, which were in another stream or an older copy of it"
        )
        return Loss(text, missing)

    def reset(self, why: StorageError) -> None:
        """Refuse: what servers keep in copies is for an operator to repair.

        Raises:
            StorageError: What was wrong.
        """
        raise why

    def close(self) -> None:
        """Do nothing: connections are those of all partitions."""


class ReplicatedStorage:
    """All partitions of a cluster, for any thread.

    Args:
        stream: Where the logs are.
        ledger: Where all else is.
        namespace: What the subjects of the logs begin with.
        owner: Who opens partitions: nobody else is called so.
        check_log: Raises a `GradwatchError` if the stream is not there, or not as it was made.
    """

    def __init__(
        self,
        stream: Stream,
        ledger: Ledger,
        namespace: str,
        owner: str,
        check_log: Callable[[], None],
    ) -> None:
        self.check_log = check_log
        self._stream = stream
        self._ledger = ledger
        self._namespace = namespace
        self._owner = owner

    @property
    def alert_events(self) -> AlertEventReader:
        """The alert events of all partitions."""
        return self._ledger.alert_events

    @property
    def runs(self) -> RunCatalogue:
        """What owners published of their runs."""
        return self._ledger.runs

    def open(self, partition: int, epoch: int) -> ReplicatedStore:
        """Open a partition for writing, as the owner of an epoch; earlier ones write no more.

        Raises:
            StorageError: If it cannot be used; `GONE` if there is an owner of a later epoch.
        """
        ledger = self._ledger.take(partition, epoch, self._owner)
        log = JetStreamLog(self._stream, self._namespace, partition, epoch)
        return ReplicatedStore(log, ledger, f"partition {partition} of {self._namespace}")

    def has_entries(self, partition: int) -> bool:
        """Tell whether there is or was anything in the log of a partition, also one that is gone.

        Raises:
            StorageError: If that cannot be read just now.
        """
        with storage_errors():
            messages = self._stream.read(f"{self._namespace}.log.{partition}", headers_only=True)
            if next(iter(messages), None) is not None:
                return True
        return self._ledger.was_taken(partition)

    def open_deliveries(self, epoch: int) -> DeliveryLog:
        """Open what is kept of notifications for writing, as the one who sends them in an epoch.

        Raises:
            StorageError: As of `open`.
        """
        return self._ledger.take_deliveries(epoch, self._owner)

    def close(self) -> None:
        """Let go of the ledger."""
        self._ledger.close()
