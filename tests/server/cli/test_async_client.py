"""The client of the live view."""

from __future__ import annotations

import asyncio

import pytest

from gradwatch_server.cli.async_client import MOST_KEPT, connected
from tests.support.aggregator import Serve

pytestmark = pytest.mark.slow


def test_an_answer_that_did_not_change_is_not_sent_again(serve: Serve) -> None:
    service = serve()

    async def scenario() -> None:
        async with connected(service.url) as client:
            first = await client.get("/runs")
            assert await client.get("/runs") is first
            service.shows(service.peer(run="new").attach())
            (second,) = await client.get("/runs")
            assert second["run"] == "new"
            for limit in range(1, 2 * MOST_KEPT):
                await client.get(f"/runs?limit={limit}")
            assert len(client._kept) == MOST_KEPT

    asyncio.run(scenario())
