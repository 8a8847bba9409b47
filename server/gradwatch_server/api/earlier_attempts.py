"""Attempts that no snapshot shows any more: the engine is asked for them.

The store would not do: a quiet run is saved only after some thousand entries of the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from gradwatch_server.api.questions import ShowAttempt
from gradwatch_server.core.views.snapshot import RunView
from gradwatch_server.engine.commands import Command


class EarlierAttempts:
    """Asks for one at a time, so that readers take the engine little of its time.

    Args:
        command: Has the engine do something.
    """

    def __init__(self, command: Callable[[Command], Awaitable[Any]]) -> None:
        self._command = command
        self._asking = asyncio.Lock()

    async def find(self, view: RunView, attempt: int) -> RunView | None:
        """Return another attempt of a run, None if it is not in memory any more.

        Of the frames of one that no snapshot shows nothing is left, but of its ranks, counts and
        alerts.

        Args:
            view: The current one.
            attempt: The number of the one that is wanted.

        Raises:
            HTTPException: If the engine cannot answer.
        """
        if (shown := view.of_attempt(attempt)) is not None:
            return shown
        async with self._asking:
            found: RunView | None = await self._command(ShowAttempt(view.name, attempt))
        # What is of the run as a whole, the current one has as it is now.
        return found and replace(
            found, attempts=view.attempts, alerts=view.alerts, stored=view.stored, lost=view.lost
        )
