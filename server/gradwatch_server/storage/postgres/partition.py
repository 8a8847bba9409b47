"""What the owner of one partition writes."""

from __future__ import annotations

from gradwatch_server.clock import Clock
from gradwatch_server.storage.postgres.alert_events import PostgresAlertEvents
from gradwatch_server.storage.postgres.database import Database, Fence
from gradwatch_server.storage.postgres.run_catalogue import PostgresPartitionRuns
from gradwatch_server.storage.postgres.saved_state import PostgresSavedState
from gradwatch_server.storage.postgres.series import PostgresSeries


class PostgresPartition:
    """Alert events, saved state, curves and runs of one partition.

    Args:
        db: The database.
        fence: The partition, and the epoch with which it was taken.
        clock: Gives the time at which an alert event is stored.
    """

    def __init__(self, db: Database, fence: Fence, clock: Clock) -> None:
        self._fence = fence
        self._alert_events = PostgresAlertEvents(db, fence, clock)
        self._state = PostgresSavedState(db, fence)
        self._series = PostgresSeries(db, fence)
        self._runs = PostgresPartitionRuns(db, fence)

    @property
    def partition(self) -> int:
        """Its number."""
        return self._fence.partition

    @property
    def epoch(self) -> int:
        """The epoch that it is written with."""
        return self._fence.epoch

    @property
    def alert_events(self) -> PostgresAlertEvents:
        """The events of this partition; their cursors are those of the whole cluster."""
        return self._alert_events

    @property
    def state(self) -> PostgresSavedState:
        """What the next owner begins with."""
        return self._state

    @property
    def series(self) -> PostgresSeries:
        """The curves."""
        return self._series

    @property
    def runs(self) -> PostgresPartitionRuns:
        """What is published of its runs."""
        return self._runs

    def used_bytes(self) -> int:
        """Return about how much space alert events, saved state and curves of it take."""
        parts = (self._alert_events, self._state, self._series)
        return sum(own.used_bytes() for own in parts)
