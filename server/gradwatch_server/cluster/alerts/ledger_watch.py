"""Sees that alert events were stored, by whichever node, and says so to those who follow them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from gradwatch_server.cluster.repeating import Repeating
from gradwatch_server.storage.store import AlertEventReader, StorageError

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""How often it is looked; whoever stores some says so besides."""

HANGS_S: Final = 5.0
"""Time after which a look without an answer is a fault."""

STOP_S: Final = 1.0
"""How long the end waits for a look."""


class LedgerWatch:
    """Looks for new alert events in a thread of its own.

    Args:
        alert_events: Those of all partitions.
        on_new: Called when there are some.
    """

    def __init__(self, alert_events: AlertEventReader, on_new: Callable[[], None]) -> None:
        self.cursor = 0
        """That of the newest event."""
        self._fault: str | None = None
        self._began_s: float | None = None  # the look that goes on
        self._alert_events = alert_events
        self._on_new = on_new
        self._looks = Repeating("ledger", self._follow, LOOK_S, STOP_S)
        self.start, self.wake, self.stop = self._looks.start, self._looks.wake, self._looks.stop

    @property
    def fault(self) -> str | None:
        """Why the ledger cannot be read just now, None if it can."""
        began_s = self._began_s
        waited_s = 0.0 if began_s is None else time.monotonic() - began_s
        if waited_s > HANGS_S:
            return f"the ledger has not answered for {waited_s:.0f} s"
        return self._fault

    def _follow(self) -> None:
        newest = self._look()
        if newest is not None and newest != self.cursor:
            self.cursor = newest
            self._on_new()

    def _look(self) -> int | None:
        """Return the newest cursor, None if it cannot be read."""
        self._began_s = time.monotonic()
        try:
            newest = self._alert_events.newest()
        except StorageError as error:
            if self._fault is None:
                logger.error("the ledger cannot be read: %s", error)
            self._fault = str(error)
            return None
        finally:
            self._began_s = None
        self._fault = None
        return newest
