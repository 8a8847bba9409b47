"""The client of the live view, which asks for several things at once over one connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from gradwatch_server.cli.client import (
    TIMEOUT,
    UNREACHABLE,
    check,
    no_answer,
    not_an_aggregator,
)
from gradwatch_server.cli.credentials import credentials


class AsyncClient:
    """Asks one aggregator.

    Args:
        url: Where it answers.
        http: What carries the requests.
    """

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self._url = url.rstrip("/")
        self._http = http

    async def get(self, path: str) -> Any:
        """Return the JSON that it answers.

        Raises:
            GradwatchError: If nobody answers, or it answers with an error.
        """
        try:
            response = await self._http.get(self._url + path)
        except UNREACHABLE as error:
            raise no_answer(self._url, error) from error
        check(response)
        try:
            return response.json()
        except ValueError as error:
            raise not_an_aggregator(self._url) from error


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AsyncClient]:
    """Open a client for the length of the block.

    Raises:
        GradwatchError: If what it is to identify itself by is unusable.
    """
    async with httpx.AsyncClient(timeout=TIMEOUT, trust_env=False, **credentials()) as http:
        yield AsyncClient(url, http)
