"""Ticks of a stream: a page learns from them that there is something new."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.waiting import PATIENCE_S, wait_until


class Reader:
    """Reads a stream in a thread: `(event, data, has an id)` each."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self.events: list[tuple[str, Any, bool]] = []
        self.times_s: list[float] = []
        self._client = httpx.Client(timeout=PATIENCE_S)
        self._thread = threading.Thread(target=self._read, args=(url, headers or {}), daemon=True)
        self._thread.start()

    def _read(self, url: str, headers: dict[str, str]) -> None:
        try:
            with self._client.stream("GET", url, headers=headers) as answer:
                block: dict[str, str] = {}
                for line in answer.iter_lines():
                    name, _, value = line.partition(": ")
                    if line:
                        block[name] = value
                        continue
                    if "data" in block:
                        data = json.loads(block["data"])
                        self.times_s.append(time.monotonic())
                        self.events.append((block.get("event", "message"), data, "id" in block))
                    block = {}
        except (httpx.HTTPError, RuntimeError):
            pass  # closed

    def of(self, kind: str) -> list[Any]:
        return [data for name, data, _ in self.events if name == kind]

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def read(service: Any) -> Iterator[Any]:
    made: list[Reader] = []

    def begin(path: str, **headers: str) -> Reader:
        made.append(Reader(service.url + path, headers))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def test_a_stream_says_hello_and_then_what_moved(service: Any, peers: Any, read: Any) -> None:
    """Attempt, epoch, last step and revision of each run that moved, and no id with it."""
    peer = peers(service.ingest, run="ticking").attach()
    reader = read("/alerts/stream?ticks=1")
    wait_until(lambda: reader.of("hello"))
    (hello,) = reader.of("hello")
    assert set(hello) == {"boot", "version", "cursor", "now"}

    peer.steps(0, 1.0, 1.0, 1.0)
    moved: Any = wait_until(lambda: [own for own in reader.of("tick") if _step(own) == 2])

    attempt, epoch, step, revision = moved[0]["runs"]["ticking"]
    assert (attempt, epoch, step) == (1, 0, 2)
    assert revision > 0
    assert not any(has_id for kind, _, has_id in reader.events if kind != "message")


def _step(tick: dict[str, Any]) -> int | None:
    found: int | None = tick["runs"].get("ticking", [None] * 4)[2]
    return found


def test_ticks_are_one_a_second_at_most(service: Any, peers: Any, read: Any) -> None:
    """However many steps there are; alerts alone have an id."""
    peer = peers(service.ingest, run="busy").attach()
    reader = read("/alerts/stream?run=busy&ticks=true")
    wait_until(lambda: reader.of("hello"))
    for step in range(30):
        peer.stats(step, (1.0, 1.0))
        time.sleep(0.1)
    peer.steps(30, float("nan"))
    wait_until(lambda: reader.of("message"))

    pairs = zip(reader.events, reader.times_s, strict=True)
    times_s = [at_s for (kind, _, _), at_s in pairs if kind == "tick"]
    assert 2 <= len(times_s) <= 6
    assert min(b - a for a, b in itertools.pairwise(times_s)) > 0.8
    assert all(has_id for kind, _, has_id in reader.events if kind == "message")


def test_without_ticks_a_stream_is_what_it_was(service: Any, peers: Any, read: Any) -> None:
    """Whoever reads it with curl sees alerts alone; a run that does not move is in no tick."""
    peer = peers(service.ingest, run="quiet").attach()
    other = peers(service.ingest, run="other").attach()
    wait_until(lambda: service.json("/runs/quiet"))
    plain, of_quiet = read("/alerts/stream"), read("/runs/quiet/alerts/stream?ticks=1")
    wait_until(lambda: of_quiet.of("hello"))
    other.steps(0, 1.0, 2.0)
    peer.steps(0, float("nan"))

    wait_until(lambda: plain.of("message") and of_quiet.of("tick"))
    assert {kind for kind, _, _ in plain.events} == {"message"}
    assert {name for tick in of_quiet.of("tick") for name in tick["runs"]} == {"quiet"}
