"""Sees that alert events were stored, by whichever node, and says so to those who follow them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from gradwatch_server.storage.store import AlertEventReader, StorageError

logger = logging.getLogger(__name__)

LOOK_S: Final = 1.0
"""How often it is looked; whoever stores some says so besides."""


class LedgerWatch:
    """Looks for new alert events in a thread of its own.

    Args:
        alert_events: Those of all partitions.
        on_new: Called when there are some.
    """

    def __init__(self, alert_events: AlertEventReader, on_new: Callable[[], None]) -> None:
        self.cursor = 0
        """That of the newest event."""
        self.fault: str | None = None
        """Why the ledger cannot be read just now, None if it can."""
        self._alert_events = alert_events
        self._on_new = on_new
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gradwatch-ledger", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wake(self) -> None:
        """Say that events were stored; from any thread."""
        self._woken.set()

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                newest = self._alert_events.newest()
            except StorageError as error:
                if self.fault is None:
                    logger.error("the ledger cannot be read: %s", error)
                self.fault = str(error)
            else:
                self.fault = None
                if newest != self.cursor:
                    self.cursor = newest
                    self._on_new()
            self._woken.wait(LOOK_S)
            self._woken.clear()
