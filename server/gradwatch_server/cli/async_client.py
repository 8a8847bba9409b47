"""The same client for the live view, which waits for several things at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx
import httpx_sse

from gradwatch_server.cli.client import (
    RECONNECT_S,
    STREAM_TIMEOUT,
    TIMEOUT,
    UNREACHABLE,
    check,
    no_answer,
    not_an_aggregator,
)
from gradwatch_server.cli.credentials import credentials
from gradwatch_server.errors import GradwatchError

HELLO: Final = "hello"
LOST: Final = "lost"

_STREAM: Final = "/alerts/stream?ticks=1&silenced=true"


@dataclass(frozen=True, slots=True)
class Heard:
    """Something that the stream says.

    Args:
        event: `hello` at its beginning, `tick`, `message` for an alert, or `lost` when it broke.
        data: What comes with it.
    """

    event: str
    data: Mapping[str, Any]


class AsyncClient:
    """Asks one aggregator.

    Args:
        url: Where it answers.
        http: What carries the requests.
    """

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self.url = url.rstrip("/")
        self._http = http

    async def get(self, path: str) -> Any:
        """Return the JSON that it answers.

        Raises:
            GradwatchError: If it answers with an error; `NoAnswerError` if nobody answers.
        """
        return await self._ask("GET", path)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON that it answers to something that changes something.

        Raises:
            GradwatchError: As `get`.
        """
        return await self._ask("POST", path, body)

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            response = await self._http.request(method, self.url + path, json=body)
        except UNREACHABLE as error:
            raise no_answer(self.url, error) from error
        check(response)
        try:
            return response.json()
        except ValueError as error:
            raise not_an_aggregator(self.url) from error

    async def follow(self) -> AsyncIterator[Heard]:
        """Yield what the stream says, for ever; it is opened anew when it broke."""
        while True:
            why = "it ended"
            try:
                async with httpx_sse.aconnect_sse(
                    self._http, "GET", self.url + _STREAM, timeout=STREAM_TIMEOUT
                ) as source:
                    if source.response.is_error:
                        await source.response.aread()
                    check(source.response)
                    async for message in source.aiter_sse():
                        if message.data:  # pings have none
                            yield Heard(message.event, json.loads(message.data))
            except (*UNREACHABLE, GradwatchError, ValueError) as error:
                why = str(error)
            yield Heard(LOST, {"why": why})
            await asyncio.sleep(RECONNECT_S)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AsyncClient]:
    """Open a client for the length of the block.

    Raises:
        GradwatchError: If what it is to identify itself by is unusable.
    """
    async with httpx.AsyncClient(timeout=TIMEOUT, trust_env=False, **credentials()) as http:
        yield AsyncClient(url, http)
