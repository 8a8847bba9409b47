"""Alert events as they are stored, for any number of subscribers.

A subscriber is only woken; the events it reads from the store, by cursor, so that a slow one misses
none and delays nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from starlette.concurrency import run_in_threadpool

from gradwatch_server.storage.store import AlertEvent, AlertEventReader

PING_S: Final = 15.0
"""Longest time without a message, so that neither end takes the connection for dead."""


class AlertStream:
    """Alert events as they are stored. Belongs to one event loop, woken from any thread."""

    def __init__(self, alert_events: AlertEventReader) -> None:
        self._alert_events = alert_events
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._closed = False

    def start(self) -> None:
        """Bind to the running loop."""
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        """Say that events were stored; from any thread, before `start` and after the end too."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """End every stream, so that the server can stop."""
        self._closed = True
        self.wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def resume(self, cursor: int) -> int:
        """Return the cursor after which a stream goes on that ended at *cursor*.

        A cursor that was never given out is of another log: the events of this one are all new.
        """
        newest = await run_in_threadpool(self._alert_events.newest)
        return cursor if cursor <= newest else 0

    async def follow(self, cursor: int, run: str | None) -> AsyncIterator[AlertEvent | None]:
        """Yield the events after *cursor*, then each new one, until `close`.

        None says that there was nothing for `PING_S`.
        """
        while not self._closed:
            changed = self._changed
            events = await run_in_threadpool(self._alert_events.after, cursor, run)
            for event in events:
                yield event
                cursor = event.cursor
            if not events:
                try:
                    await asyncio.wait_for(changed.wait(), PING_S)
                except TimeoutError:
                    yield None
