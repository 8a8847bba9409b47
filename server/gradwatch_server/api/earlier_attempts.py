"""Attempts that are not in memory as a view any more: read from what a restart would begin with."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from gradwatch_server.core.views.snapshot import RunView, view_attempt
from gradwatch_server.storage.checkpoints import load_run
from gradwatch_server.storage.history import History


class EarlierAttempts:
    """Reads them from the store, one at a time, in any thread.

    Args:
        open_history: Opens the store for reading.
    """

    def __init__(self, open_history: Callable[[], History]) -> None:
        self._open_history = open_history
        self._reading = threading.Lock()

    def find(self, view: RunView, attempt: int) -> RunView | None:
        """Return an earlier attempt of a run, None if it is not saved (yet).

        Of its frames nothing is left, but of its ranks, counts and alerts.

        Args:
            view: The current one.
            attempt: The number of the one that is wanted.

        Raises:
            StorageError: If the store cannot be read.
        """
        with self._reading, closing(self._open_history()) as history:
            run = load_run(history.state, view.name)
        found = None if run is None else view_attempt(run, attempt, view.rules)
        if found is None:
            return None
        # Of the run as a whole the newest is known better.
        return replace(
            found,
            attempts=view.attempts,
            alerts=view.alerts,
            stored=view.stored,
            lost=view.lost,
        )
