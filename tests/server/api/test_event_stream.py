"""A stream that lost its place ends with a word, and frees what it held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from gradwatch_server.api.routes.streams import EVICTED, EventStream
from gradwatch_server.api.security.stream_limit import StreamLimit
from gradwatch_server.budgets import Budgets, BudgetUse


def test_the_newest_of_a_caller_takes_the_place_of_his_oldest() -> None:
    """S30: nobody is turned away; the others go on, and a place is free again after an end."""

    async def scenario() -> None:
        use = BudgetUse(Budgets(streams_per_caller=2))
        limit, gate = StreamLimit(use), asyncio.Event()
        answers: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()

        async def events() -> AsyncIterator[bytes]:
            yield b":\n\n"
            await gate.wait()

        async def subscribe(name: str) -> None:
            async def receive() -> dict[str, Any]:
                await asyncio.sleep(60)
                raise AssertionError

            async def send(message: Any) -> None:
                answers.put_nowait((name, message.get("status", message.get("body"))))

            scope = {"type": "http", "asgi": {"spec_version": "2.3"}, "client": ("10.0.0.1", 1)}
            await EventStream(events(), limit)(scope, receive, send)

        tasks = {}
        for name in ("first", "second"):
            tasks[name] = asyncio.create_task(subscribe(name))
            assert await answers.get() == (name, 200)
            assert await answers.get() == (name, b":\n\n")
        tasks["third"] = asyncio.create_task(subscribe("third"))
        told = [await answers.get() for _ in range(3)]
        assert set(told) == {("first", EVICTED), ("third", b":\n\n"), ("third", 200)}
        await tasks.pop("first")
        assert use["streams_per_caller"].used == 2
        gate.set()
        await asyncio.gather(*tasks.values())
        assert use["streams_per_caller"].used == 0

    asyncio.run(asyncio.wait_for(scenario(), 30))
