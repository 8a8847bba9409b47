"""The alert stream: events from the store by cursor, a sign of life between them, an end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwatch_server.api import alert_stream as alert_stream_module
from gradwatch_server.api.alert_stream import SLICE, AlertStream, EventFilter, StreamEvent
from gradwatch_server.clock import Clock
from gradwatch_server.storage.alert_events import AlertEvents
from gradwatch_server.storage.rows import NewAlertEvent
from gradwatch_server.storage.sqlite.store import SQLiteStore


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[AlertEvents]:
    store = SQLiteStore.open(tmp_path / "data", Clock())
    yield store.alert_events
    store.close()


def add(stored: AlertEvents, *names: str) -> None:
    stored.add([NewAlertEvent(name, "firing", "gpt", "{}") for name in names])


def test_a_quiet_stream_shows_that_it_lives(
    stored: AlertEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alert_stream_module, "PING_S", 0.05)

    async def follow() -> list[int | None]:
        alert_stream = AlertStream(stored)
        alert_stream.start()
        seen: list[int | None] = []
        async for event in alert_stream.follow(0, EventFilter()):
            seen.append(event.cursor if event else None)
            if len(seen) == 2:
                add(stored, "a", "b")
                alert_stream.wake()
            if len(seen) == 5:
                alert_stream.close()
        return seen

    assert asyncio.run(follow()) == [None, None, 1, 2, None]


def test_events_of_the_time_while_it_read_are_not_missed(
    stored: AlertEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = stored.after

    async def follow() -> list[int]:
        alert_stream = AlertStream(stored)
        alert_stream.start()
        loop = asyncio.get_running_loop()
        late = iter("abc")

        def read(cursor: int, run: str | None) -> object:
            events = after(cursor, run)
            name = next(late, None)
            if name:
                add(stored, name)
                alert_stream.wake()
            else:
                loop.call_soon_threadsafe(alert_stream.close)
            return events

        monkeypatch.setattr(stored, "after", read)
        return [event.cursor async for event in alert_stream.follow(0, EventFilter()) if event]

    assert asyncio.run(follow()) == [1, 2, 3]


def test_waking_a_feed_without_a_loop_is_harmless(stored: AlertEvents) -> None:
    """The engine wakes it before the server runs, and after it has ended."""
    alert_stream = AlertStream(stored)
    alert_stream.wake()

    async def start() -> None:
        alert_stream.start()

    asyncio.run(start())
    alert_stream.wake()
    alert_stream.close()


def test_a_closed_stream_ends_every_subscription(stored: AlertEvents) -> None:
    add(stored, "a")

    async def follow() -> list[int]:
        alert_stream = AlertStream(stored)
        alert_stream.start()

        seen = asyncio.Event()

        async def one(cursor: int) -> int:
            num_events = 0
            async for _ in alert_stream.follow(cursor, EventFilter()):
                num_events += 1
                seen.set()
            return num_events

        streams = [asyncio.create_task(one(cursor)) for cursor in (0, 1, 1)]
        await seen.wait()  # and the others began before the first had anything to show
        alert_stream.close()
        return list(await asyncio.gather(*streams))

    assert asyncio.run(follow()) == [1, 0, 0]


def test_silenced_events_are_for_those_who_ask_for_them() -> None:
    loud, silenced = (StreamEvent(1, "gpt", is_silenced, b"") for is_silenced in (False, True))

    assert [EventFilter().takes(event) for event in (loud, silenced)] == [True, False]
    assert [EventFilter(silenced=True).takes(event) for event in (loud, silenced)] == [True, True]


def test_many_subscribers_are_woken_few_at_a_time(
    stored: AlertEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    turns: list[int] = []

    async def nothing(_self: AlertStream, cursor: int, _run: str | None) -> list[StreamEvent]:
        woken.append(cursor)
        return []

    monkeypatch.setattr(AlertStream, "_after", nothing)

    async def read(alert_stream: AlertStream, number: int) -> None:
        async for _ in alert_stream.follow(number, EventFilter()):
            pass

    async def wake() -> None:
        alert_stream = AlertStream(stored)
        alert_stream.start()
        readers = [asyncio.create_task(read(alert_stream, number)) for number in range(200)]
        while len(woken) < 200:  # noqa: ASYNC110 - turn by turn
            await asyncio.sleep(0)
        woken.clear()
        readers[7].cancel()
        alert_stream.wake()
        while len(woken) < 199:
            turns.append(len(woken))
            await asyncio.sleep(0)
        turns.append(len(woken))
        alert_stream.close()
        async with asyncio.timeout(5.0):
            await asyncio.gather(*readers, return_exceptions=True)

    asyncio.run(wake())
    assert sorted(woken[:199]) == [number for number in range(200) if number != 7]
    assert max(after - before for before, after in itertools.pairwise(turns)) <= SLICE
