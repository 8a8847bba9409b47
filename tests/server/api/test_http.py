"""The HTTP API of a real process: every route, every error, and the alert streams."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import resource
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY

import httpx
import pytest

from gradwatch_server.storage.store import PAGE_EVENTS
from gradwatch_wire import Beat, Bye, Column, Event, Gains, __version__
from gradwatch_wire.jsonable import jsonable
from tests.support.aggregator import Aggregator, Serve
from tests.support.listener import Listen
from tests.support.peer import NewPeer
from tests.support.waiting import PATIENCE_S, wait_until

NAN = math.nan
NUMBERS = itertools.count(1)


@pytest.fixture
def run() -> str:
    """A run name that no other test of the module uses."""
    return f"run-{next(NUMBERS)}"


@pytest.fixture
def attach(service: Aggregator, peers: NewPeer, run: str) -> Callable[..., Any]:
    """Attach a rank of the test's own run, and wait until the API shows it."""

    def begin(**settings: Any) -> Any:
        peer = peers(service.ingest, **{"run": run} | settings).attach()
        wait_until(lambda: service.get(f"/runs/{peer.greeting.run}").is_success)
        return peer

    return begin


@pytest.fixture
def health(service: Aggregator, run: str) -> Callable[..., Any]:
    """Wait until the health of the test's own run has these values; return it."""

    def ask(**expected: Any) -> Any:
        def check() -> Any:
            response = service.get(f"/runs/{run}/health")
            report = response.json()
            fits = all(report.get(name) == value for name, value in expected.items())
            return response.is_success and fits and report

        return wait_until(check)

    return ask


def problem(response: httpx.Response) -> tuple[int, str]:
    """Return status and detail of a problem document, after a look at its form."""
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert set(document) == {"type", "title", "status", "detail"}
    assert document["status"] == response.status_code
    return response.status_code, document["detail"]


@pytest.mark.slow
def test_the_process_says_that_it_lives_and_is_ready(service: Aggregator) -> None:
    assert service.json("/healthz") == {
        "status": "ok",
        "version": __version__,
        "cursor": newest(service),
        "boot": ANY,
        "ingest": service.ingest,
        "now": ANY,
    }
    told = datetime.fromisoformat(service.json("/healthz")["now"])
    assert abs(told - datetime.now(UTC)) < timedelta(minutes=10)
    assert service.json("/readyz") == {"status": "ready"}


@pytest.mark.parametrize("host", ["*", "0.0.0.0", "[::]"])
def test_which_of_all_addresses_clients_reach_is_not_made_up(serve: Serve, host: str) -> None:
    """A page that shows the line which attaches would show one that leads nowhere."""
    service = serve("--ingest", f"tcp://{host}:0", "--insecure")

    found = service.json("/healthz")

    assert found["ingest"] is None
    before = found["boot"]
    service.stop()
    service.start()
    assert service.json("/healthz")["boot"] != before


@pytest.mark.slow
def test_health_says_what_to_go_back_to(
    attach: Callable[..., Any], health: Callable[..., Any], run: str
) -> None:
    """The step before a critical alert began; the usual time of a step; whose clock ages go by."""
    peer = attach()
    for step in range(10):
        peer.stats(step, (1.0 if step < 8 else NAN, 1.0), step_time_s=0.5)
    peer.acked()

    report = health(step=9)

    assert report["status"] == "critical"
    assert report["last_good_step"] == 7
    assert report["usual_step_time_s"] == 0.5
    assert report["revision"] >= 10
    assert report["now"] >= report["updated_at"]


@pytest.mark.slow
def test_what_health_does_not_know_is_null(
    attach: Callable[..., Any], health: Callable[..., Any]
) -> None:
    peer = attach()
    report = health(status="unknown")
    assert (report["last_good_step"], report["usual_step_time_s"]) == (None, None)
    peer.steps(0, 1.0, 1.0)

    report = health(step=1)

    assert (report["last_good_step"], report["usual_step_time_s"]) == (1, None)


def test_the_api_describes_itself(service: Aggregator) -> None:
    """OpenAPI with a summary for every route."""
    document = service.json("/openapi.json")

    assert {
        "/healthz",
        "/readyz",
        "/runs",
        "/runs/{run}",
        "/runs/{run}/health",
        "/runs/{run}/gains",
        "/runs/{run}/groups",
        "/runs/{run}/noise-scale",
        "/runs/{run}/alerts",
        "/runs/{run}/alerts/stream",
        "/alerts",
        "/alerts/stream",
    } <= set(document["paths"])
    for path in document["paths"].values():
        assert all(operation["summary"] for operation in path.values())


def test_a_run_is_shown_from_its_first_hello_on(
    service: Aggregator, peers: NewPeer, run: str, health: Callable[..., Any]
) -> None:
    peers(service.ingest, run=run).greet()

    report = health(status="unknown")

    assert (report["step"], report["first_bad"], report["ranks"][0]["state"]) == (
        None,
        None,
        "alive",
    )


def test_health_has_the_shape_of_the_design(
    attach: Callable[..., Any], health: Callable[..., Any], run: str
) -> None:
    peer = attach()
    peer.steps(0, 1.0, 1e-9, math.inf)  # one step of three that a layer has to vanish for
    report = health(step=2)

    assert {
        "run",
        "status",
        "attempt",
        "step",
        "updated_at",
        "score",
        "window",
        "gradient_norm",
        "has_vanishing",
        "has_exploding",
        "layers",
        "worst_layers",
        "groups",
        "records",
        "ranks",
        "alerts",
        "first_bad",
    } <= set(report)
    assert (report["run"], report["status"], report["attempt"]) == (run, "critical", 1)
    assert set(report["score"]) == {"last", "mean", "min"}
    assert set(report["window"]) == {"steps", "first_step", "last_step", "coverage"}
    assert {"last", "mean", "std", "p50", "p95", "max"} <= set(report["gradient_norm"])
    assert report["gradient_norm"]["last"] == "Infinity"
    assert set(report["layers"]) == {"total", "vanishing", "exploding", "nonfinite", "dead"}
    assert report["worst_layers"] == [{"name": "a", "why": "nonfinite", "l2": "Infinity"}]
    assert report["records"]["stored"] == 4
    assert report["records"]["lost"] == 0
    assert {"rank", "state", "last_step", "last_seen_s", "lost"} <= set(report["ranks"][0])
    assert {k: report["alerts"][k] for k in ("firing", "pending")} == {"firing": 1, "pending": 1}
    assert [item["rule"] for item in report["alerts"]["items"]] == ["nonfinite", "vanishing"]
    assert report["first_bad"] == {
        "step": 2,
        "rank": 0,
        "layer": "a",
        "kind": "inf",
        "bad_loss": None,
        "first_gradient": "a",
        "module": None,
        "layers": ["a"],
        "num_layers": 1,
    }


@pytest.mark.slow
def test_all_runs_are_listed_the_last_active_one_first(
    service: Aggregator, attach: Callable[..., Any], health: Callable[..., Any], run: str
) -> None:
    attach().steps(0, NAN)
    health(step=0)
    first = service.json("/runs")[0]

    assert (first["run"], first["status"], first["step"], first["firing"]) == (
        run,
        "critical",
        0,
        1,
    )
    assert (first["ranks"], first["world"], first["attempt"]) == (1, 1, 1)
    assert first["records"]["stored"] == 2
    assert first["score"] == 0.0


@pytest.mark.slow
def test_a_run_shows_its_attempts_layers_and_events(
    service: Aggregator,
    peers: NewPeer,
    attach: Callable[..., Any],
    health: Callable[..., Any],
    run: str,
) -> None:
    """Layers in forward order with their sizes; one line per attempt."""
    attach().steps(0, 1.0)
    peer = peers(service.ingest, run=run).attach(["x", "y"])
    peer.steps(0, 1.0)
    health(attempt=2, step=0)
    shown = service.json(f"/runs/{run}")

    assert shown["run"] == run
    assert shown["layers"] == [{"name": "x", "numel": 10}, {"name": "y", "numel": 10}]
    assert [(a["attempt"], a["world"], a["frames"]) for a in shown["attempts"]] == [
        (1, 1, 1),
        (2, 1, 1),
    ]
    assert (shown["events"], shown["skipped_steps"]) == ({}, 0)
    assert shown["created_at"] <= shown["attempts"][0]["started_at"] <= shown["updated_at"]


@pytest.mark.slow
def test_gains_of_a_run_are_shown(
    service: Aggregator, attach: Callable[..., Any], run: str
) -> None:
    peer = attach()
    path = f"/runs/{run}/gains"
    empty = service.json(path)
    assert {key: empty[key] for key in ("run", "attempt", "step", "norm_type")} == {
        "run": run,
        "attempt": 1,
        "step": None,
        "norm_type": None,
    }
    assert (empty["blocks"], empty["transitions"], empty["ranks"]) == ([], [], [])
    assert set(empty["summary"]) >= {"mean_gain", "num_healthy", "num_missing"}

    norms = Column.pack("<f8", [6.0, 2.0, 0.0])
    peer.send(Gains(step=3, blocks=("x", "y", "z"), norm_type="l1", norms=norms))
    answer = wait_until(lambda: service.json(path)["step"] == 3 and service.json(path))

    assert (answer["norm_type"], answer["ranks"]) == ("l1", [0])
    assert [block["name"] for block in answer["blocks"]] == ["x", "y", "z"]
    assert answer["transitions"][1] == {
        "from": "y",
        "to": "z",
        "gain": "Infinity",
        "log_gain": "Infinity",
        "category": "vanishing",
    }
    assert answer["summary"]["num_amplifying"] == 1


@pytest.mark.slow
def test_groups_of_a_run_are_compared(
    service: Aggregator, peers: NewPeer, health: Callable[..., Any], run: str
) -> None:
    groups = {"host": (0,), "seed": (1,)}
    peer = peers(service.ingest, run=run).attach(groups=groups)
    peer.steps(0, 4.0)
    report = health(step=0)
    answer = service.json(f"/runs/{run}/groups")

    assert report["groups"] == {"seed/host": 0.25}
    assert answer == {
        "run": run,
        "attempt": 1,
        "step": 0,
        "groups": [
            {"name": "host", "layers": 1, "numel": 10, "l2": 4.0},
            {"name": "seed", "layers": 1, "numel": 10, "l2": 1.0},
        ],
        "ratios": {"seed/host": 0.25, "host/seed": 4.0},
    }
    peer.steps(1, NAN)
    assert health(step=1)["groups"] == {"seed/host": "NaN"}


def test_shards_of_two_ranks_are_one_layer(
    service: Aggregator, peers: NewPeer, health: Callable[..., Any], run: str
) -> None:
    ranks = [
        peers(service.ingest, run=run, rank=rank, world=2).attach(
            ["w"], shards=(f"Shard(0) {rank}/2",)
        )
        for rank in (0, 1)
    ]
    for peer, norm in zip(ranks, (300.0, 400.0), strict=True):
        peer.stats(0, (norm,))
        peer.acked()
    report = health(step=0)

    assert report["worst_layers"] == [{"name": "w", "why": "exploding", "l2": 500.0}]
    assert report["gradient_norm"]["last"] == 500.0


def test_skipped_steps_are_counted(
    service: Aggregator, attach: Callable[..., Any], run: str
) -> None:
    peer = attach()
    for step in (4, 4, 9):
        data = {"loss_scale": 1024.0, "optimizer": 0}
        peer.send(Event(name="skipped_step", step=step, data=data))
    peer.acked()

    shown = wait_until(
        lambda: service.json(f"/runs/{run}")["skipped_steps"] and service.json(f"/runs/{run}")
    )
    assert (shown["skipped_steps"], shown["events"]) == (2, {"skipped_step": 3})


@pytest.mark.slow
def test_alerts_of_a_run_can_be_asked_for_by_state(
    service: Aggregator, attach: Callable[..., Any], health: Callable[..., Any], run: str
) -> None:
    peer = attach()
    peer.steps(0, NAN, 1.0, 1.0, 1.0, NAN, 1e-9)
    health(step=5)
    path = f"/runs/{run}/alerts"

    def states(state: str = "") -> list[str]:
        alerts = service.json(path, params={"state": state} if state else {})
        return [f"{alert['rule']} {alert['state']}" for alert in alerts]

    assert states() == ["vanishing pending", "nonfinite firing", "nonfinite resolved"]
    assert states("pending") == ["vanishing pending"]
    assert states("firing") == ["nonfinite firing"]
    assert states("resolved") == ["nonfinite resolved"]
    assert service.json(path)[1]["origin"]["value"] == "NaN"
    assert service.json(path)[1]["origin"]["before"][0] == {"step": 1, "l2": 1.0}


@pytest.mark.slow
def test_alert_events_are_paged_by_cursor(
    service: Aggregator, attach: Callable[..., Any], health: Callable[..., Any], run: str
) -> None:
    """Oldest first, after the cursor, across all runs."""
    start = newest(service)
    attach().steps(0, NAN, 1.0, 1.0, 1.0, NAN)
    health(step=4)
    events = service.json("/alerts", params={"after": start})
    cursors = [event["cursor"] for event in events]

    assert cursors == list(range(start + 1, start + 1 + len(events)))
    # Ranks of other runs may fall silent meanwhile.
    assert [e["state"] for e in events if e["run"] == run] == ["firing", "resolved", "firing"]
    assert service.json("/alerts", params={"after": start, "limit": 1}) == events[:1]
    assert service.json("/alerts", params={"after": cursors[-1], "run": run}) == []
    assert service.json("/alerts")[0]["cursor"] == 1


def newest(service: Any) -> int:
    """Return the cursor of the newest alert event."""
    cursor = 0
    while page := service.json("/alerts", params={"after": cursor, "limit": 1000}):
        cursor = page[-1]["cursor"]
    return cursor


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/alerts?after=x", "query after"),
        ("/alerts?after=-1", "query after"),
        ("/alerts?after=9223372036854775808", "query after"),
        ("/alerts?limit=0", "query limit"),
        ("/alerts?limit=1001", "query limit"),
        ("/alerts?limit=1e3", "query limit"),
        ("/runs/x/alerts?state=burning", "query state"),
    ],
)
def test_a_bad_value_is_a_422_that_names_it(service: Aggregator, path: str, where: str) -> None:
    status, detail = problem(service.get(path))

    assert status == 422
    assert detail.startswith(where + ": ")
    assert "got '" in detail


@pytest.mark.slow
@pytest.mark.parametrize("value", ["x", "-1", "1.5", "9223372036854775808", ""])
def test_a_bad_last_event_id_is_a_422(service: Aggregator, value: str) -> None:
    for path in ("/alerts/stream", "/runs/x/alerts/stream"):
        response = service.get(path, headers={"Last-Event-ID": value})
        assert problem(response)[0] in (404, 422)
    assert problem(service.get("/alerts/stream", headers={"Last-Event-ID": value}))[0] == 422


def test_unknown_paths_and_methods_are_problems(service: Aggregator) -> None:
    """A 405 says what is allowed."""
    assert problem(service.get("/nothing"))[0] == 404
    response = httpx.post(service.url + "/runs", timeout=10, trust_env=False)

    assert problem(response)[0] == 405
    assert response.headers["allow"] == "GET"


def test_head_is_get_without_its_body(service: Aggregator) -> None:
    with httpx.Client(base_url=service.url, trust_env=False) as client:
        for path in ("/healthz", "/readyz", "/runs", "/nothing"):
            head, get = client.head(path), client.get(path)
            assert head.status_code == get.status_code
            assert head.headers["content-length"] == str(len(get.content))
            assert head.content == b""


def test_noise_on_the_port_does_no_harm(serve: Serve) -> None:
    """Bytes that are no HTTP, endless headers, a body where none is read, half a request."""
    service = serve()
    host, _, port = service.url.removeprefix("http://").partition(":")
    for noise in (
        os.urandom(5_000),
        b"GET / HTTP/1.1\r\n" + b"X-Long: " + b"y" * 200_000,
        b"GET /runs HTTP/1.1\r\nHost: x\r\nContent-Length: 50000000\r\n\r\n" + bytes(500_000),
        b"GET /runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /run",
    ):
        with (
            socket.create_connection((host, int(port))) as raw,
            contextlib.suppress(OSError),
        ):
            raw.settimeout(0.3)
            raw.sendall(noise)
            raw.recv(100)

    assert service.json("/readyz") == {"status": "ready"}


def test_names_from_the_wire_come_back_as_they_were(
    service: Aggregator, peers: NewPeer, health: Callable[..., Any], run: str
) -> None:
    """Layer names may be any text: markup, quotes, line ends, other scripts."""
    names = ["<script>alert(1)</script>", 'a"b\\c\n\r', "слой\u2028é", "\x00\x1b[31m"]
    peer = peers(service.ingest, run=run).attach(names)
    peer.stats(0, [NAN] * 4)
    peer.acked()
    report = health(step=0)

    assert [layer["name"] for layer in service.json(f"/runs/{run}")["layers"]] == names
    assert report["first_bad"]["first_gradient"] == names[3]
    assert report["alerts"]["items"][0]["layers"] == [names[3], *names[:3]]
    message = report["alerts"]["items"][0]["message"]
    assert message.isprintable()


def test_answers_are_strict_json(
    service: Aggregator, attach: Callable[..., Any], health: Callable[..., Any]
) -> None:
    peer = attach()
    peer.stats(0, (NAN, math.inf), loss=-math.inf, local_probe=NAN)
    peer.acked()
    report = health(step=0)
    text = service.get(f"/runs/{report['run']}/health").text

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    json.loads(text, parse_constant=refuse)
    assert report["loss"] == "-Infinity"
    assert report["worst_layers"][0]["l2"] == "Infinity"
    assert report["worst_layers"][1]["l2"] == "NaN"


@pytest.mark.slow
def test_silence_shows_within_seconds_and_beats_count_as_life(
    attach: Callable[..., Any], health: Callable[..., Any], service: Aggregator, run: str
) -> None:
    """last_seen_s goes up, and a beat begins it anew."""
    peer = attach()
    peer.steps(0, 1.0)
    health(step=0)

    def last_seen_s() -> float:
        seconds: float = service.json(f"/runs/{run}/health")["ranks"][0]["last_seen_s"]
        return seconds

    wait_until(lambda: last_seen_s() >= 0.5, "half a second of silence")
    began = time.monotonic()
    peer.say(Beat())
    since_beat_s = last_seen_s()

    assert since_beat_s <= time.monotonic() - began + 0.001  # it is rounded to milliseconds


# Streams


def bad_steps(peer: Any, first: int, count: int) -> None:
    """Make *count* alerts that fire and are resolved: 2 events for each 4 steps."""
    for at in range(first, first + 4 * count, 4):
        for step, norm in enumerate([NAN, 1.0, 1.0, 1.0], at):
            peer.stats(step, (norm, 1.0))
        peer.acked()


@pytest.mark.slow
def test_a_stream_tells_each_event_as_it_happens(
    service: Aggregator, attach: Callable[..., Any], listen: Listen, run: str
) -> None:
    peer = attach()
    bad_steps(peer, 0, 1)
    start = newest(service)
    stream = listen(service.url, f"/runs/{run}/alerts/stream")
    bad_steps(peer, 4, 2)

    cursors = stream.cursors(4)
    assert cursors == sorted(cursors)
    assert stream.ids == [str(cursor) for cursor in cursors]
    assert [event["state"] for event in stream.events] == ["firing", "resolved"] * 2
    # Runs of other tests may go silent meanwhile.
    kept = service.json("/alerts", params={"after": start})
    assert stream.events == [event for event in kept if event["run"] == run]


@pytest.mark.slow
def test_a_stream_from_0_gives_everything_kept(
    service: Aggregator, attach: Callable[..., Any], listen: Listen, run: str
) -> None:
    peer = attach()
    bad_steps(peer, 0, 60)
    bad_steps(attach(run=f"{run}-b"), 0, 60)
    kept = newest(service)
    assert kept > PAGE_EVENTS
    stream = listen(service.url, "/alerts/stream", after=0)
    bad_steps(peer, 600, 2)

    assert stream.cursors(kept + 4) == list(range(1, kept + 5))


@pytest.mark.slow
def test_a_stream_of_a_run_tells_of_no_other(
    service: Aggregator, attach: Callable[..., Any], listen: Listen, run: str
) -> None:
    own, other = attach(), attach(run=f"{run}-other")
    streams = [
        listen(service.url, f"/runs/{run}/alerts/stream"),
        listen(service.url, f"/alerts/stream?run={run}"),
        listen(service.url, "/alerts/stream"),
    ]
    bad_steps(other, 0, 1)
    bad_steps(own, 0, 1)

    both = [f"{run}-other"] * 2 + [run] * 2
    for stream in streams[:2]:
        stream.cursors(2)
        assert [e["run"] for e in stream.events] == [run] * 2
    # That of all tells also of runs whose ranks fell silent meanwhile.
    wait_until(
        lambda: [e["run"] for e in streams[2].events if e["run"] in both] == both, "both runs"
    )


@pytest.mark.slow
def test_a_stream_resumes_with_nothing_missed_or_doubled(
    service: Aggregator, attach: Callable[..., Any], listen: Listen, run: str
) -> None:
    """Cut at random moments while events are made; the ids say where to go on."""
    peer = attach()
    start = newest(service)
    done = threading.Event()

    def make() -> None:
        for round_ in range(40):
            bad_steps(peer, 4 * round_, 1)
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


@pytest.mark.slow
def test_a_stream_says_at_once_where_it_begins(
    service: Aggregator, attach: Callable[..., Any]
) -> None:
    bad_steps(attach(), 0, 1)
    cursor = newest(service)
    with httpx.stream("GET", service.url + "/alerts/stream", trust_env=False) as response:
        lines = list(itertools.islice(response.iter_lines(), 2))

    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert lines == [f": gradwatch alerts after {cursor}", ""]


@pytest.mark.slow
def test_a_cursor_of_another_log_begins_anew(
    service: Aggregator, attach: Callable[..., Any], listen: Listen
) -> None:
    bad_steps(attach(), 0, 1)
    kept = newest(service)
    stream = listen(service.url, "/alerts/stream", after=kept + 1_000)

    # More may come meanwhile: ranks of other runs fall silent.
    assert stream.cursors(kept)[:kept] == list(range(1, kept + 1))
    level = listen(service.url, "/alerts/stream", after=kept)
    bad_steps(attach(), 0, 1)
    assert level.cursors(2)[:2] == [kept + 1, kept + 2]


@pytest.mark.slow
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
    bad_steps(attach(), 0, 20)

    seen = stream.cursors(40)
    events = service.json("/alerts", params={"run": run, "after": 0, "limit": 1000})
    assert seen == [event["cursor"] for event in events][:40]
    for one in stuck:
        one.close()


def test_streams_end_when_the_aggregator_does(serve: Serve, peers: NewPeer, listen: Listen) -> None:
    """SIGTERM with streams open: they are ended, and the last batch is committed."""
    service = serve()
    peer = peers(service.ingest).attach()
    streams = [listen(service.url, path) for path in ("/alerts/stream", "/runs/gpt/alerts/stream")]
    for step in range(50):
        peer.stats(step, (NAN, 1.0))
    acked = peer.acked(5).acked

    assert service.stop() == 0
    assert "Traceback" not in service.errors
    for stream in streams:
        assert stream.ended.wait(PATIENCE_S)
    with sqlite3.connect(service.directory / "gradwatch.db") as db:
        (stored,) = db.execute("SELECT count(*) FROM log WHERE kind IN (3, 4)").fetchone()
    db.close()
    assert stored >= acked


def test_everything_is_there_after_a_kill(serve: Serve, peers: NewPeer) -> None:
    """SIGKILL: the next process shows the same run, and the stream goes on by the same cursors."""
    service = serve()
    peer = peers(service.ingest, world=2).attach()
    peer.steps(0, 1.0)
    peer.send(Bye())
    peer.acked()
    wait_until(lambda: service.json("/runs/gpt/health")["ranks"][0]["state"] == "ended")
    other = peers(service.ingest, rank=1, world=2).attach()
    bad_steps(other, 1, 1)
    wait_until(lambda: newest(service) == 2)
    service.shows(other)
    before = service.json("/runs/gpt/health")
    events = service.json("/alerts")
    service.stop(signal.SIGKILL)
    service.start()
    after = service.json("/runs/gpt/health")

    assert service.json("/alerts") == events
    for report in (before, after):
        del report["now"], report["revision"]
        for rank in report["ranks"]:
            del rank["last_seen_s"]
    assert after == before
    other.greet()
    bad_steps(other, 5, 1)
    wait_until(lambda: newest(service) == 4)  # it is acknowledged before it is applied
    assert [e["cursor"] for e in service.json("/alerts")] == [1, 2, 3, 4]


def test_a_disk_that_is_full_shows_and_heals(serve: Serve, peers: NewPeer) -> None:
    """readyz turns 503 with the reason, nothing is acknowledged; with room again all is there."""
    service = serve()
    layers = [f"l{i}" for i in range(1_000)]
    peer = peers(service.ingest).attach(layers)
    limit_file_size(service.process.pid, 4_096)
    for step in range(5):
        peer.stats(step, [1.0] * 1_000)
    wait_until(lambda: service.get("/readyz").status_code == 503)

    status, detail = problem(service.get("/readyz"))
    assert (status, detail.startswith("the log cannot be written: ")) == (503, True)
    assert peer.is_silent()
    report = service.json("/runs/gpt/health")
    assert (report["status"], report["reasons"]) == ("incomplete", [detail, "no step yet"])
    assert report["records"]["stored"] == 1
    limit_file_size(service.process.pid, resource.RLIM_INFINITY)
    peer.acked()

    wait_until(lambda: service.json("/runs/gpt/health")["records"]["stored"] == 6)
    assert service.json("/readyz") == {"status": "ready"}
    assert service.json("/runs/gpt/health")["records"]["lost"] == 0
    assert service.stop() == 0
    assert service.errors.count("the log cannot be written, nothing is acknowledged") == 1
    assert service.errors.count("the log can be written again") == 1


def limit_file_size(pid: int, size: int) -> None:
    """Let a process write no file beyond *size* bytes, as on a full disk."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


@pytest.mark.slow
def test_the_alert_a_rank_gets_is_the_one_the_api_shows(
    service: Aggregator, attach: Callable[..., Any], health: Callable[..., Any], run: str
) -> None:
    peer = attach()
    peer.stats(0, (NAN, 1.0))
    while not peer.alerts:
        peer.say(Beat())
    health(step=0)
    (shown,) = service.json(f"/runs/{run}/alerts")

    assert jsonable(peer.alerts[0]) == shown
