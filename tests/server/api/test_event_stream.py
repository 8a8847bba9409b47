"""Streams are limited in number."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from gradwatch_server.api.event_stream import EventStream
from gradwatch_server.api.security.stream_limit import StreamLimit


def test_streams_are_limited_and_a_place_is_free_again() -> None:
    """One too many is a 503; when one ends, however it ends, there is a place."""

    async def scenario() -> None:
        limit, gate = StreamLimit(2), asyncio.Event()
        answers: asyncio.Queue[int] = asyncio.Queue()

        async def events() -> AsyncIterator[bytes]:
            yield b":\n\n"
            await gate.wait()

        async def subscribe() -> None:
            async def receive() -> dict[str, Any]:
                await asyncio.sleep(60)
                raise AssertionError

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    answers.put_nowait(message["status"])

            scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
            await EventStream(events(), limit)(scope, receive, send)

        first, second = (asyncio.create_task(subscribe()) for _ in range(2))
        assert [await answers.get(), await answers.get()] == [200, 200]
        await subscribe()
        assert await answers.get() == 503
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        third = asyncio.create_task(subscribe())
        assert await answers.get() == 200
        gate.set()
        await asyncio.gather(second, third)
        assert [limit.acquire() for _ in range(3)] == [True, True, False]

    asyncio.run(asyncio.wait_for(scenario(), 30))
