"""What all commands share: usage, addresses, an aggregator that is not there."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from gradwatch_wire import __version__
from tests.support.aggregator import Aggregator
from tests.support.command import Command, error


class Other(BaseHTTPRequestHandler):
    """A web server that is no aggregator."""

    def do_GET(self) -> None:
        self.send_response(500 if "runs/x" in self.path else 200)
        self.end_headers()
        self.wfile.write(b"<html>It works!</html>")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.mark.parametrize("command", ["health", "tail", "replay", ""])
def test_help_shows_flags_as_what_they_are(invoke: Command, command: str) -> None:
    """S54: not as if `--json` took a value."""
    shown = invoke(*filter(None, [command]), "--help").stdout

    assert "--help" in shown
    assert "bool" not in shown


@pytest.mark.slow
@pytest.mark.parametrize("name", ["nope", "a/b", "?", "../runs", "../healthz#", "x y", "\x1b[31m"])
def test_an_unknown_run_is_one_line(invoke: Command, service: Aggregator, name: str) -> None:
    """A name that no run can have is told as such, whatever it would mean in a URL."""
    is_possible = name == "nope"  # and then `tail` waits for it, and `alerts` has none
    told = f"no run {name!a}; known runs: " if is_possible else f"run name {name!a} is not 1 to 128"
    ways = [("health",), ("rules", "--run")]
    ways += [] if is_possible else [("tail",), ("alerts",)]
    for way in ways:
        line = error(invoke(*way, name, "--url", service.url))
        assert line.startswith(told)
        assert line.isprintable()


@pytest.mark.slow
@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://a..b:80", "http://[", "ftp://x", "", "x"]
)
def test_no_aggregator_there_is_one_line(invoke: Command, url: str) -> None:
    for arguments in (["runs"], ["health", "x"], ["tail"], ["tail", "--after", "0"]):
        line = error(invoke(*arguments, "--url", url))
        assert line.startswith(f"no aggregator answers at {url} (")
        assert line.endswith("start one with 'gradwatch serve' or give --url")


@pytest.mark.parametrize(
    "command", [("health", "r"), ("runs",), ("tail",), ("tail", "--after", "0")]
)
def test_the_ingest_port_as_url_is_one_line_at_once(
    gradwatch: Command, service: Aggregator, command: tuple[str, ...]
) -> None:
    """It would never answer in HTTP, and the request would wait for its time-out (S54)."""
    url = service.ingest.replace("tcp://", "http://")
    began_s = time.monotonic()
    line = error(gradwatch(*command, "--url", url))

    assert line == (
        f"{url} is an ingest port, which takes records and answers no questions; "
        "give the HTTP address with --url, by default port 8420"
    )
    assert time.monotonic() - began_s < 8  # a time-out takes ten


def test_a_proxy_is_not_asked(gradwatch: Command, service: Aggregator) -> None:
    """Clusters set one for everything; the aggregator is in the same network."""
    result = gradwatch(
        "runs",
        "--url",
        service.url,
        HTTP_PROXY="http://127.0.0.1:1",
        ALL_PROXY="http://127.0.0.1:1",
    )

    assert result.returncode == 0


@pytest.mark.slow
def test_another_server_on_the_port_is_one_line(invoke: Command) -> None:
    with HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        lines = [
            error(invoke("runs", "--url", url)),
            error(invoke("health", "x", "--url", url)),
            error(invoke("tail", "--url", url)),
            error(invoke("tail", "--after", "0", "--url", url)),
        ]
        server.shutdown()

    assert lines[0] == f"what answers at {url} is no aggregator; give its address with --url"
    assert lines[1] == "HTTP 500"
    assert lines[2] == lines[0]
    assert lines[3].startswith(f"no aggregator answers at {url} (Expected response header")


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("serve", "--nonsense"),
        ("health",),
        ("health", "x", "--fail-on", "sad"),
        ("tail", "--after", "-1"),
        ("tail", "--after", "x"),
    ],
)
def test_wrong_usage_exits_2(invoke: Command, arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)

    assert result.returncode == 2
    assert "--help" in result.stderr


def test_the_version_is_told(gradwatch: Command) -> None:
    assert gradwatch("--version").stdout == f"gradwatch {__version__}\n"
