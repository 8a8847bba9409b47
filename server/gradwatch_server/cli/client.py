"""The HTTP client of the commands: one request, or the alert stream over lost connections."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlencode

import httpx
import httpx_sse

from gradwatch_server.cli.credentials import credentials
from gradwatch_server.cli.ingest_port import IngestPortCheck
from gradwatch_server.errors import GradwatchError
from gradwatch_wire.health import RUN_NAME_RULE, is_run_name

RECONNECT_S: Final = 1.0

TIMEOUT: Final = httpx.Timeout(10.0, connect=3.0)

STREAM_TIMEOUT: Final = httpx.Timeout(10.0, connect=3.0, read=45.0)
"""A stream that says nothing so long is connected anew: three times the interval of its pings."""

_PAGE_EVENTS: Final = 1000

UNREACHABLE: Final = (httpx.HTTPError, httpx.InvalidURL, UnicodeError)
"""UnicodeError: a host name that cannot be one."""


def named(run: str) -> str:
    """Return the name of a run.

    Raises:
        GradwatchError: If no run can have it.
    """
    if not is_run_name(run):
        msg = f"run name {run[:80]!a} is not {RUN_NAME_RULE}"
        raise GradwatchError(msg)
    return run


def run_path(run: str, rest: str) -> str:
    """Return the path of something below a run.

    Raises:
        GradwatchError: If no run can have that name.
    """
    return f"/runs/{named(run)}/{rest}"


def query_of(*parameters: tuple[str, object]) -> str:
    """Return `?name=value&...`; those that are None or empty are left out."""
    given = [(name, value) for name, value in parameters if value not in (None, "")]
    return f"?{urlencode(given)}" if given else ""


def get(url: str, path: str) -> Any:
    """Return the JSON that the aggregator at *url* answers.

    Raises:
        GradwatchError: If there is none, or it answers with an error.
    """
    return ask("GET", url, path)


def ask(method: str, url: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    """Return the JSON that the aggregator at *url* answers, None if it answers nothing.

    Raises:
        GradwatchError: If there is none, or it answers with an error.
    """
    address = url.rstrip("/") + path
    try:
        with httpx.Client(timeout=TIMEOUT, trust_env=False, **credentials()) as client:
            extensions = {"trace": IngestPortCheck(url)}
            response = client.request(method, address, json=body, extensions=extensions)
    except UNREACHABLE as error:
        raise no_answer(url, error) from error
    check(response)
    if response.status_code == httpx.codes.NO_CONTENT:
        return None
    try:
        return response.json()
    except ValueError as error:
        raise not_an_aggregator(url) from error


def is_known(url: str, run: str) -> bool:
    """Tell whether the aggregator knows a run.

    Raises:
        GradwatchError: If the aggregator cannot be reached, or answers with an error.
    """
    return any(known["run"] == run for known in get(url, "/runs"))


def past_events(url: str, run: str | None, after: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the alert events that are kept after a cursor, of one run or of all, oldest first.

    Raises:
        GradwatchError: If the aggregator cannot be reached, or answers with an error; or if no run
            can have that name.
    """
    query = "" if run is None else f"&run={named(run)}"
    seen = after
    while page := get(url, f"/alerts?after={seen}&limit={_PAGE_EVENTS}{query}"):
        yield from page
        seen = page[-1]["cursor"]


def follow_alerts(url: str, run: str | None, after: int | None) -> Iterator[dict[str, Any]]:
    """Yield alert events for ever; after a lost connection go on from the last one seen.

    Args:
        run: Only events of this run, which may be yet to come; None for all.
        after: The cursor to begin after; None for the newest.

    Raises:
        GradwatchError: If it cannot be reached at the beginning, or answers with an error; or if
            no event has had the cursor *after* yet.
    """
    query = "" if run is None else f"?run={named(run)}"
    address = f"{url.rstrip('/')}/alerts/stream{query}"
    newest = _newest(url) if after != 0 else 0
    if after is not None and after > newest:
        msg = f"cursor {after} was not given out yet, newest is {newest}"
        raise GradwatchError(msg)
    seen = newest if after is None else after
    connected = False
    while True:
        try:
            with _connect(url, address, seen) as source:
                check(source.response)
                connected = "event-stream" in source.response.headers.get("content-type", "")
                for message in source.iter_sse():
                    if message.data:  # pings have none
                        seen = int(message.id)
                        yield message.json()
        except UNREACHABLE as error:
            if not connected:
                raise no_answer(url, error) from error
        time.sleep(RECONNECT_S)


@contextmanager
def _connect(url: str, address: str, after: int) -> Iterator[httpx_sse.EventSource]:
    """Open the stream of the events after a cursor."""
    headers = {"Last-Event-ID": str(after)}
    with (
        httpx.Client(timeout=STREAM_TIMEOUT, trust_env=False, **credentials()) as client,
        httpx_sse.connect_sse(
            client, "GET", address, headers=headers, extensions={"trace": IngestPortCheck(url)}
        ) as source,
    ):
        yield source


def _newest(url: str) -> int:
    """Return the cursor of the newest event; a stream that begins after it misses nothing."""
    answer = get(url, "/healthz")
    try:
        return int(answer["cursor"])
    except (KeyError, TypeError, ValueError) as error:
        get(url, "/alerts?limit=1")  # a node that waits for another one says so
        raise not_an_aggregator(url) from error


def check(response: httpx.Response) -> None:
    """Look at an answer that is read, or can be.

    Raises:
        GradwatchError: If it is an error, with what the aggregator says of it.
    """
    if response.is_success:
        return
    try:
        detail = json.loads(response.read())["detail"]
    except (ValueError, KeyError, TypeError):
        detail = f"HTTP {response.status_code}"
    raise GradwatchError(str(detail))


def not_an_aggregator(url: str) -> GradwatchError:
    return GradwatchError(f"what answers at {url} is no aggregator; give its address with --url")


def no_answer(url: str, error: Exception) -> GradwatchError:
    """Return the error for an aggregator that cannot be reached."""
    return GradwatchError(
        f"no aggregator answers at {url} ({error}); start one with 'gradwatch serve' or give --url"
    )
