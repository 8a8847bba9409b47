"""Alert events as they are stored, for any number of subscribers.

A subscriber is only woken. The newest events lie in memory, read and encoded once for all of them;
what is older a subscriber reads from the store by cursor. So a slow one misses none and delays
nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Final

from starlette.concurrency import run_in_threadpool

from gradwatch_server.storage.alert_events import AlertEvents
from gradwatch_server.storage.rows import PAGE_EVENTS, AlertEvent

PING_S: Final = 15.0
"""Longest time without a message, so that neither end takes the connection for dead."""

SLICE: Final = 20
"""Subscribers that are woken before others of the loop get their turn."""

MAX_RECENT_BYTES: Final = 4 << 20
"""Size of the newest events, encoded, that are kept in memory for all subscribers."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An alert event as it is sent.

    Args:
        silenced: Whether a silence keeps it from those who did not ask for such.
    """

    cursor: int
    run: str
    silenced: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Filter of a subscriber.

    Args:
        run: Only events of this run; None for all.
        silenced: Whether also those that a silence keeps.
    """

    run: str | None = None
    silenced: bool = False

    def takes(self, event: StreamEvent) -> bool:
        return self.run in (None, event.run) and (self.silenced or not event.silenced)


def describe_event(event: AlertEvent) -> dict[str, Any]:
    return {"cursor": event.cursor, **event.alert}


def encode_event(event: AlertEvent) -> StreamEvent:
    text = f"id: {event.cursor}\ndata: {json.dumps(describe_event(event))}\n\n"
    return StreamEvent(event.cursor, event.run, bool(event.alert.get("silenced")), text.encode())


class RecentEvents:
    """The newest events, without a gap, up to a number of bytes."""

    def __init__(self, cursor: int) -> None:
        self.after = cursor  # it has all events after this one, up to `newest`
        self.newest = cursor
        self._events: deque[StreamEvent] = deque()
        self._num_bytes = 0

    def extend(self, events: Iterable[StreamEvent]) -> None:
        """Add events, and drop the oldest of what is too much."""
        for event in events:
            self._events.append(event)
            self._num_bytes += len(event.data)
            self.newest = event.cursor
        while self._num_bytes > MAX_RECENT_BYTES:
            dropped = self._events.popleft()
            self._num_bytes -= len(dropped.data)
            self.after = dropped.cursor

    def since(self, cursor: int) -> list[StreamEvent]:
        """Return the events after *cursor*, oldest first."""
        events: list[StreamEvent] = []
        for event in reversed(self._events):
            if event.cursor <= cursor:
                break
            events.append(event)
        return events[::-1]


class AlertStream:
    """Alert events as they are stored. Belongs to one event loop, woken from any thread."""

    def __init__(self, alert_events: AlertEvents) -> None:
        self._alert_events = alert_events
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[asyncio.Future[bool], None] = {}
        self._to_wake: deque[asyncio.Future[bool]] = deque()
        self._num_woken = 0
        self._num_read = -1  # how often it had been woken when the recent events were read
        self._recent: RecentEvents | None = None
        self._reading = asyncio.Lock()
        self._closed = False

    def start(self) -> None:
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
        self._num_woken += 1
        is_waking = bool(self._to_wake)
        self._to_wake.extend(self._waiting)
        self._waiting.clear()
        if not is_waking:
            self._wake_some()

    def _wake_some(self) -> None:
        for _ in range(min(SLICE, len(self._to_wake))):
            _settle(self._to_wake.popleft(), is_woken=True)
        if self._to_wake:
            asyncio.get_running_loop().call_soon(self._wake_some)

    async def _wait(self) -> bool:
        """Wait until woken; return False if that took `PING_S`."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        self._waiting[woken] = None
        timer = loop.call_later(PING_S, lambda: _settle(woken, is_woken=False))
        try:
            return await woken
        finally:
            timer.cancel()
            self._waiting.pop(woken, None)

    async def resume(self, cursor: int) -> int:
        """Return the cursor after which a stream goes on that ended at *cursor*.

        A cursor that was never given out is of another log: the events of this one are all new.
        """
        newest = await run_in_threadpool(self._alert_events.newest)
        return cursor if cursor <= newest else 0

    async def follow(self, cursor: int, wanted: EventFilter) -> AsyncIterator[StreamEvent | None]:
        """Yield the wanted events after *cursor*, then each new one, until `close`.

        None says that there was nothing for `PING_S`.
        """
        while not self._closed:
            num_woken = self._num_woken
            events = await self._after(cursor, wanted.run)
            for event in events:
                if wanted.takes(event):
                    yield event
                cursor = event.cursor
            if not events and num_woken == self._num_woken and not await self._wait():
                yield None

    async def _after(self, cursor: int, run: str | None) -> list[StreamEvent]:
        """Return the next events after *cursor*, none if there are none yet; also of other runs."""
        recent = await self._read_recent()
        if cursor >= recent.after:
            return recent.since(cursor)
        page = await run_in_threadpool(self._page, cursor, run)
        return page or recent.since(recent.after)

    async def _read_recent(self) -> RecentEvents:
        """Return the newest events, with all that were stored before this call."""
        async with self._reading:
            if self._recent is None:
                self._recent = RecentEvents(await run_in_threadpool(self._alert_events.newest))
            recent = self._recent
            woken = self._num_woken
            while self._num_read != woken:
                events = await run_in_threadpool(self._page, recent.newest)
                recent.extend(events)
                if len(events) < PAGE_EVENTS:
                    self._num_read = woken
            return recent

    def _page(self, cursor: int, run: str | None = None) -> list[StreamEvent]:
        """Read a page of the store, in any thread; of one run or of all."""
        return [encode_event(event) for event in self._alert_events.after(cursor, run)]


def _settle(waiting: asyncio.Future[bool], *, is_woken: bool) -> None:
    if not waiting.done():  # its subscriber may have left
        waiting.set_result(is_woken)
