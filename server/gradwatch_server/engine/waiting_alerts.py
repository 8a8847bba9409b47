"""Alerts on their way into the store, which may be away while the log is not."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final

from gradwatch_server.engine.alert_delivery import AlertChange
from gradwatch_server.storage.store import AlertEvents, StorageError, StorageFault

logger = logging.getLogger(__name__)

RETRY_NS: Final = 500_000_000
"""Pause after the store did not take them."""

MAX_STORED: Final = 500
"""Alerts that are stored at once."""


class WaitingAlerts:
    """The alerts that are not stored, in their order. No checkpoint may be saved meanwhile.

    Args:
        store: Where they go.
        max_bytes: What may wait; 0 for a store that is away only when the log is as well.
    """

    def __init__(self, store: AlertEvents, max_bytes: int) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._waiting: deque[AlertChange] = deque()
        self._num_bytes = 0
        self._retry_ns = 0
        self._failed = False

    @property
    def is_empty(self) -> bool:
        """Whether all are stored."""
        return not self._waiting

    @property
    def are_too_many(self) -> bool:
        """Whether nothing may be applied before they are stored."""
        return self._num_bytes > self._max_bytes

    def add(self, changes: Sequence[AlertChange]) -> None:
        """Put changes behind those that wait."""
        for change in changes:
            self._waiting.append(change)
            self._num_bytes += len(change.event.body)

    def is_due(self, now_ns: int) -> bool:
        """Tell whether it is time to try to store them."""
        return bool(self._waiting) and now_ns >= self._retry_ns

    def store(self) -> tuple[list[AlertChange], int]:
        """Store the oldest ones; return these, and the newest cursor.

        Raises:
            StorageError: If they cannot be stored; all of them wait on.
        """
        own = list(islice(self._waiting, MAX_STORED))
        cursor = self._store.add([change.event for change in own])
        for _ in own:
            self._num_bytes -= len(self._waiting.popleft().event.body)
        if self._failed:
            logger.warning("alerts can be stored again")
        self._failed = False
        return own, cursor

    def try_to_store(self, now_ns: int) -> tuple[list[AlertChange], int] | None:
        """Likewise; return None if they cannot be stored just now.

        Raises:
            StorageError: If no waiting mends that.
        """
        try:
            return self.store()
        except StorageError as error:
            if error.fault is StorageFault.GONE:
                raise
            if not self._failed:
                logger.error("alerts wait until they can be stored (told once): %s", error)
            self._failed, self._retry_ns = True, now_ns + RETRY_NS
            return None
