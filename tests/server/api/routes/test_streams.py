"""Streams of alert events."""

from __future__ import annotations

import itertools
import math
import socket
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gradwatch_server.storage.rows import PAGE_EVENTS
from gradwatch_server.storage.sqlite.history import read_log
from gradwatch_wire import Kind
from tests.support.aggregator import Aggregator, Serve
from tests.support.listener import Listen
from tests.support.problems import problem
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

NAN = math.nan


def newest_after(service: Aggregator, run: str, events: int) -> int:
    """Return the cursor of the newest alert event, once a run has that many of them.

    A record is acknowledged before it is judged.
    """

    def are_there() -> bool:
        return len(service.json("/alerts", params={"run": run, "limit": 1000})) >= events

    wait_until(are_there, f"{events} alert events of {run}")
    return service.newest_event()


@pytest.mark.parametrize("value", ["x", "-1", "1.5", "9223372036854775808", ""])
def test_a_bad_last_event_id_is_a_422(service: Aggregator, value: str) -> None:
    for path in ("/alerts/stream", "/runs/x/alerts/stream"):
        response = service.get(path, headers={"Last-Event-ID": value})
        assert problem(response)[0] in (404, 422)
    assert problem(service.get("/alerts/stream", headers={"Last-Event-ID": value}))[0] == 422


def test_a_stream_tells_each_event_as_it_happens(
    service: Aggregator, attach: Callable[..., Any], listen: Listen, run: str
) -> None:
    peer = attach()
    peer.bad_steps(0, 1)
    start = newest_after(service, run, 2)
    stream = listen(service.url, f"/runs/{run}/alerts/stream")
    peer.bad_steps(4, 2)

    cursors = stream.cursors(4)
    assert cursors == sorted(cursors)
    assert stream.ids == [str(cursor) for cursor in cursors]
    assert [event["state"] for event in stream.events] == ["firing", "resolved"] * 2
    # Runs of other tests may go silent meanwhile.
    kept = service.json("/alerts", params={"after": start})
    assert stream.events == [event for event in kept if event["run"] == run]


def test_a_stream_from_0_gives_everything_kept(
    service: Aggregator, attach: Callable[..., Any], listen: Listen, run: str
) -> None:
    peer = attach()
    peer.bad_steps(0, 60)
    attach(run=f"{run}-b").bad_steps(0, 60)
    newest_after(service, run, 120)
    kept = newest_after(service, f"{run}-b", 120)
    assert kept > PAGE_EVENTS
    stream = listen(service.url, "/alerts/stream", after=0)
    peer.bad_steps(600, 2)

    assert stream.cursors(kept + 4) == list(range(1, kept + 5))


def test_a_stream_of_a_run_tells_of_no_other(
    service: Aggregator, attach: Callable[..., Any], listen: Listen, run: str
) -> None:
    own, other = attach(), attach(run=f"{run}-other")
    streams = [
        listen(service.url, f"/runs/{run}/alerts/stream"),
        listen(service.url, f"/alerts/stream?run={run}"),
        listen(service.url, "/alerts/stream"),
    ]
    other.bad_steps(0, 1)
    own.bad_steps(0, 1)

    both = [f"{run}-other"] * 2 + [run] * 2
    for stream in streams[:2]:
        stream.cursors(2)
        assert [e["run"] for e in stream.events] == [run] * 2
    # That of all tells also of runs whose ranks fell silent meanwhile.
    wait_until(
        lambda: [e["run"] for e in streams[2].events if e["run"] in both] == both, "both runs"
    )


def test_a_stream_resumes_with_nothing_missed_or_doubled(
    service: Aggregator, attach: Callable[..., Any], listen: Listen, run: str
) -> None:
    """Cut at random moments while events are made; the ids say where to go on."""
    peer = attach()
    start = service.newest_event()
    done = threading.Event()

    def make() -> None:
        for round_ in range(40):
            peer.bad_steps(4 * round_, 1)
        done.set()

    maker = threading.Thread(target=make)
    maker.start()
    seen: list[int] = []
    cursor = start
    while len(seen) < 80:
        stream = listen(service.url, f"/runs/{run}/alerts/stream", after=cursor)
        part = stream.cursors(min(7, 80 - len(seen)))
        stream.close()
        seen += part
        cursor = seen[-1]
    maker.join()

    assert done.is_set()
    # Other runs of this aggregator have alerts as well: their ranks have fallen silent.
    events = service.json("/alerts", params={"after": start, "limit": 1000})
    assert seen[:80] == [event["cursor"] for event in events if event["run"] == run][:80]


def test_a_stream_says_at_once_where_it_begins(
    service: Aggregator, attach: Callable[..., Any], run: str
) -> None:
    attach().bad_steps(0, 1)
    cursor = newest_after(service, run, 2)
    with httpx.stream("GET", service.url + "/alerts/stream", trust_env=False) as response:
        lines = list(itertools.islice(response.iter_lines(), 2))

    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert lines == [f": gradwatch alerts after {cursor}", ""]


def test_a_cursor_of_another_log_begins_anew(
    service: Aggregator, attach: Callable[..., Any], listen: Listen, run: str
) -> None:
    attach().bad_steps(0, 1)
    kept = newest_after(service, run, 2)
    stream = listen(service.url, "/alerts/stream", after=kept + 1_000)

    # More may come meanwhile: ranks of other runs fall silent.
    assert stream.cursors(kept)[:kept] == list(range(1, kept + 1))
    level = listen(service.url, "/alerts/stream", after=kept)
    attach().bad_steps(0, 1)
    assert level.cursors(2)[:2] == [kept + 1, kept + 2]


def test_a_subscriber_that_does_not_read_delays_nobody(
    service: Aggregator, attach: Callable[..., Any], listen: Listen, run: str
) -> None:
    host, _, port = service.url.removeprefix("http://").partition(":")
    stuck = [socket.create_connection((host, int(port))) for _ in range(20)]
    for one in stuck:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        one.sendall(b"GET /alerts/stream HTTP/1.1\r\nHost: x\r\nLast-Event-ID: 0\r\n\r\n")
    # Of one run: ranks of others may fall silent meanwhile.
    stream = listen(service.url, f"/alerts/stream?run={run}")
    attach().bad_steps(0, 20)

    seen = stream.cursors(40)
    events = service.json("/alerts", params={"run": run, "after": 0, "limit": 1000})
    assert seen == [event["cursor"] for event in events][:40]
    for one in stuck:
        one.close()


def test_streams_end_when_the_aggregator_does(serve: Serve, listen: Listen) -> None:
    """SIGTERM with streams open: they are ended, and the last batch is committed."""
    service = serve()
    peer = service.peer().attach()
    streams = [listen(service.url, path) for path in ("/alerts/stream", "/runs/gpt/alerts/stream")]
    for step in range(50):
        peer.stats(step, (NAN, 1.0))
    acked = peer.acked(5).acked

    assert service.stop() == 0
    assert "Traceback" not in service.errors
    for stream in streams:
        assert stream.ended.wait(PATIENCE_S)
    kinds = (Kind.MANIFEST, Kind.STATS)
    assert sum(entry.kind in kinds for entry in read_log(service.directory)) >= acked
