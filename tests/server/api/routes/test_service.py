"""The process itself: life, readiness, description, errors that belong to no route."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import socket
from datetime import UTC, datetime, timedelta
from unittest.mock import ANY

import httpx
import pytest

from gradwatch_wire import __version__
from tests.support.aggregator import Aggregator, Serve
from tests.support.problems import problem
from tests.support.waiting import wait_until


def limit_file_size(pid: int, size: int) -> None:
    """Let a process write no file beyond *size* bytes, as on a full disk."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


@pytest.mark.slow
def test_the_process_says_that_it_lives_and_is_ready(service: Aggregator) -> None:
    assert service.json("/healthz") == {
        "status": "ok",
        "version": __version__,
        "cursor": service.newest_event(),
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
        with socket.create_connection((host, int(port))) as raw, contextlib.suppress(OSError):
            raw.settimeout(0.3)
            raw.sendall(noise)
            raw.recv(100)

    assert service.json("/readyz") == {"status": "ready"}


def test_a_disk_that_is_full_shows_and_heals(serve: Serve) -> None:
    """readyz turns 503 with the reason, nothing is acknowledged; with room again all is there."""
    service = serve()
    layers = [f"l{i}" for i in range(1_000)]
    peer = service.peer().attach(layers)
    wait_until(lambda: service.json("/runs/gpt/health")["records"]["stored"] == 1)
    limit_file_size(service.process.pid, 4_096)
    for step in range(5):
        peer.stats(step, [1.0 + random.random() for _ in range(1_000)])
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
