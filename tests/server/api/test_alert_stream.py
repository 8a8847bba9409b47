"""The feed: events from the store by cursor, a sign of life between them, an end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradwatch_server.api import alert_stream as feed_module
from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.storage.sqlite.alert_events import AlertStore
from gradwatch_server.storage.sqlite.log import Log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path / "data")
    yield log
    log.close()


def add(log: Log, *names: str) -> None:
    log.add_alert_events([(name, "firing", "gpt", "{}") for name in names])


def test_a_quiet_stream_shows_that_it_lives(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """None for each time that nothing came; events in between are not delayed by it."""
    monkeypatch.setattr(feed_module, "PING_S", 0.05)

    async def follow() -> list[int | None]:
        feed = AlertStream(AlertStore(log.path))
        feed.start()
        seen: list[int | None] = []
        async for event in feed.follow(0, None):
            seen.append(event.cursor if event else None)
            if len(seen) == 2:
                add(log, "a", "b")
                feed.wake()
            if len(seen) == 5:
                feed.close()
        return seen

    assert asyncio.run(follow()) == [None, None, 1, 2, None]


def test_events_of_the_time_while_it_read_are_not_missed(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One stored just after a read, and told before the reader waits, wakes it all the same."""
    store = AlertStore(log.path)
    after = AlertStore.after

    async def follow() -> list[int]:
        feed = AlertStream(store)
        feed.start()
        loop = asyncio.get_running_loop()
        late = iter("abc")

        def read(self: AlertStore, cursor: int, run: str | None) -> object:
            events = after(self, cursor, run)
            name = next(late, None)
            if not events and name:
                add(log, name)
                feed.wake()
            elif name is None:
                loop.call_soon_threadsafe(feed.close)
            return events

        monkeypatch.setattr(AlertStore, "after", read)
        return [event.cursor async for event in feed.follow(0, None) if event]

    assert asyncio.run(follow()) == [1, 2]


def test_waking_a_feed_without_a_loop_is_harmless(log: Log) -> None:
    """The engine wakes it before the server runs, and after it has ended."""
    feed = AlertStream(AlertStore(log.path))
    feed.wake()

    async def start() -> None:
        feed.start()

    asyncio.run(start())
    feed.wake()
    feed.close()


def test_a_closed_feed_ends_every_stream(log: Log) -> None:
    """Also those that wait for the next event."""
    add(log, "a")

    async def follow() -> list[int]:
        feed = AlertStream(AlertStore(log.path))
        feed.start()

        seen = asyncio.Event()

        async def one(cursor: int) -> int:
            num_events = 0
            async for _ in feed.follow(cursor, None):
                num_events += 1
                seen.set()
            return num_events

        streams = [asyncio.create_task(one(cursor)) for cursor in (0, 1, 1)]
        await seen.wait()  # and the others began before the first had anything to show
        feed.close()
        return list(await asyncio.gather(*streams))

    assert asyncio.run(follow()) == [1, 0, 0]
