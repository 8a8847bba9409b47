"""What the engine of one partition writes: its log in the stream, all else in the ledger."""

from __future__ import annotations

from collections.abc import Callable

from gradwatch_server.clock import Clock
from gradwatch_server.storage.jetstream.log import JetStreamLog
from gradwatch_server.storage.jetstream.records import JetStreamRecords
from gradwatch_server.storage.sqlite.alert_events import SQLiteAlertEvents
from gradwatch_server.storage.sqlite.saved_state import SQLiteSavedState
from gradwatch_server.storage.sqlite.series import SQLiteSeries
from gradwatch_server.storage.store import Loss, StorageError
from simulation.nodes.ledger import LedgerSession


class PartitionStore:
    """The store of one partition, as one epoch."""

    name = "simulated"

    def __init__(
        self,
        log: JetStreamLog,
        session: LedgerSession,
        clock: Clock,
        between_batches: Callable[[], None],
    ) -> None:
        """Put it together.

        Args:
            log: The log.
            session: The ledger.
            clock: Gives the time at which an alert event is stored.
            between_batches: Called between any two batches.
        """
        own = session.database()
        self.log = log
        self.alert_events = SQLiteAlertEvents(session.alerts(), clock)
        self.state = SQLiteSavedState(own)
        self.series = SQLiteSeries(own)
        self.records = JetStreamRecords(log.contents)
        self._between_batches = between_batches

    def used_bytes(self) -> int:
        """Return how much space all of it takes."""
        return 0

    def vacuum(self, num_bytes: int) -> bool:  # noqa: ARG002 - the ledger does that itself
        """Give free space back."""
        return False

    def check(self) -> None:
        """Let others have their turn."""
        self._between_batches()

    def find_loss(self) -> Loss | None:
        """Say what is missing."""
        return None

    def reset(self, why: StorageError) -> None:
        """Fail: nothing of it is damaged here."""
        raise why

    def close(self) -> None:
        """Keep all of it for the next owner."""
