"""The client of the live view: an answer that did not change is not sent again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx

from gradwatch_server.cli.client import TIMEOUT, UNREACHABLE, check, no_answer, not_an_aggregator
from gradwatch_server.cli.credentials import credentials

MOST_KEPT: Final = 16
"""Answers that are kept: those of one look, and of the look before."""


class AsyncClient:
    """Asks one aggregator; an answer that did not change is not sent again."""

    def __init__(self, url: str, http: httpx.AsyncClient) -> None:
        self._url = url.rstrip("/")
        self._http = http
        self._kept: dict[str, tuple[str, Any]] = {}  # path to tag and answer, the newest last

    async def get(self, path: str) -> Any:
        """Return the JSON that it answers.

        Raises:
            GradwatchError: If nobody answers, or it answers with an error.
        """
        tag, answer = self._kept.get(path, ("", None))
        try:
            response = await self._http.get(self._url + path, headers={"If-None-Match": tag})
        except UNREACHABLE as error:
            raise no_answer(self._url, error) from error
        if response.status_code != httpx.codes.NOT_MODIFIED:
            check(response)
            tag = response.headers.get("etag", "")
            try:
                answer = response.json()
            except ValueError as error:
                raise not_an_aggregator(self._url) from error
        self._kept.pop(path, None)
        self._kept[path] = tag, answer
        if len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return answer


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[AsyncClient]:
    """Open a client for the length of the block.

    Raises:
        GradwatchError: If what it is to identify itself by is unusable.
    """
    async with httpx.AsyncClient(timeout=TIMEOUT, trust_env=False, **credentials()) as http:
        yield AsyncClient(url, http)
