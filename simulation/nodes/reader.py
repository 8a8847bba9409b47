"""Somebody who follows the alert events of the cluster by cursor, all the time."""

from __future__ import annotations

from typing import Final

from gradwatch_server.clock import Clock
from gradwatch_server.storage.sqlite.alert_events import SQLiteAlertEvents
from gradwatch_server.storage.sqlite.database import Database
from gradwatch_server.storage.store import AlertEvent
from simulation.invariants import require

PAGE: Final = 5


class Reader:
    """What it has read."""

    def __init__(self) -> None:
        self.events: list[AlertEvent] = []

    def poll(self, database: Database) -> None:
        """Read what is new; check that nothing came before what was read, or is left out."""
        stored = SQLiteAlertEvents(database, Clock())
        while found := stored.after(len(self.events), most=PAGE):
            cursors = [event.cursor for event in found]
            first = len(self.events) + 1
            expected = list(range(first, first + len(found)))
            require(cursors == expected, "cursors have no gap", cursors, expected)
            self.events += found
