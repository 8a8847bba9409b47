"""Source of an export, over HTTP: facts of a run, its layers, pages of what is kept, alerts."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any, Final

import httpx

from gradwatch_server.api.routes.rows import NO_LAYER
from gradwatch_server.api.safetensors import MEDIA_TYPE
from gradwatch_server.cli.client import (
    UNREACHABLE,
    check,
    get,
    no_answer,
    not_an_aggregator,
    past_events,
    query_of,
    run_path,
)
from gradwatch_server.cli.credentials import credentials
from gradwatch_server.cli.export.about import ExportSelection, Layer
from gradwatch_server.cli.export.page import Page
from gradwatch_server.cli.ingest_port import IngestPortCheck
from gradwatch_server.core.printable import printable
from gradwatch_wire.run_page import run_page

READ_TIMEOUT: Final = httpx.Timeout(60.0, connect=3.0)
"""A page is read from the disk, and waits for others that read."""

BUSY_ROUNDS: Final = 60
"""Retries of a request, after the time that the answer names, while too many read at once."""

_PAGE_LAYERS: Final = 10_000


class _Pages:
    """Asks for pages over one connection."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = httpx.Client(timeout=READ_TIMEOUT, trust_env=False, **credentials())

    def close(self) -> None:
        self._client.close()

    def get(self, path: str) -> bytes:
        """Return the body of a page; where the aggregator is busy, once it is not.

        Raises:
            GradwatchError: If there is none, or it answers with an error.
        """
        for number in range(BUSY_ROUNDS):
            answer = self._ask(path)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            if number == 0:
                print(f"waiting: {printable(_detail(answer))}", file=sys.stderr)
            time.sleep(float(answer.headers.get("Retry-After", "1")))
        check(answer)
        if answer.headers.get("content-type", "") != MEDIA_TYPE:
            raise not_an_aggregator(self._url)
        return answer.content

    def _ask(self, path: str) -> httpx.Response:
        extensions = {"trace": IngestPortCheck(self._url)}
        try:
            return self._client.get(self._url.rstrip("/") + path, extensions=extensions)
        except UNREACHABLE as error:
            raise no_answer(self._url, error) from error


def _detail(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])
    except (ValueError, LookupError, TypeError):
        return f"HTTP {answer.status_code}"


class Source:
    """Reads one attempt of a run.

    Args:
        page_steps: Steps of a page at most, None for as many as the aggregator gives.
    """

    def __init__(self, url: str, run: str, attempt: int, page_steps: int | None = None) -> None:
        self.url, self.run, self.attempt = url, run, attempt
        self._limit = "limit", page_steps
        self._pages = _Pages(url)

    def close(self) -> None:
        self._pages.close()

    @property
    def page_url(self) -> str:
        return run_page(self.url, self.run, attempt=self.attempt)

    def health(self) -> dict[str, Any]:
        report: dict[str, Any] = get(self.url, self._path("health"))
        return report

    def layers(self) -> list[Layer]:
        """Return all layers, in their places."""
        layers: list[Layer] = []
        cursor: int | None = 0
        while cursor is not None:
            parts = ("limit", _PAGE_LAYERS), ("cursor", cursor or None)
            answer = get(self.url, self._path("layers", *parts))
            layers += answer["layers"]
            cursor = answer["next"]
        return layers

    def first_page(self, choice: ExportSelection) -> Page:
        """Return a page of one step: it says which epochs there are."""
        layer = "layer", choice.layers or NO_LAYER
        return self._page(layer, ("limit", 1), ("from", choice.first))

    def page(self, choice: ExportSelection, epoch: int, first: int, last: int) -> Page:
        columns = [("column", name) for name in choice.columns]
        layer = "layer", choice.layers or NO_LAYER
        steps = ("epoch", epoch), ("from", first), ("to", last)
        return self._page(layer, *steps, self._limit, *columns)

    def _page(self, *parameters: tuple[str, object]) -> Page:
        return Page.decode(self._pages.get(self._path("rows", *parameters)))

    def alerts(self) -> Iterator[dict[str, Any]]:
        """Yield the alerts of the attempt as they stand, oldest first."""
        newest: dict[str, dict[str, Any]] = {}
        for event in past_events(self.url, self.run):
            if event["attempt"] == self.attempt:
                newest[event["id"]] = event
        yield from newest.values()

    def _path(self, rest: str, *parameters: tuple[str, object]) -> str:
        attempt = ("attempt", self.attempt)
        return run_path(self.run, rest) + query_of(attempt, *parameters)
