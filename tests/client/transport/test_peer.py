"""What listens at the endpoint is no aggregator: one line says what it is, and what to do."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch
import zmq
from torch import nn

import gradwatch
from gradwatch_wire.session.peer import Speaks, look_at
from tests.support.ports import ReservedPort
from tests.support.recording import NewAggregator, Sink
from tests.support.waiting import wait_until

HTTP = "an HTTP server (records go to another address, tcp://127.0.0.1:5555 by default)"
SILENT = "something that takes connections and does not answer"


class Server:
    """A TCP server that says something to whoever connects, or nothing, and may then hang up."""

    def __init__(self, banner: bytes = b"", *, hangs_up: bool = False) -> None:
        self._banner, self._hangs_up = banner, hangs_up
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        self.endpoint = f"tcp://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            connection.sendall(self._banner)
            if self._hangs_up:
                connection.close()
            else:
                self._connections.append(connection)

    def stop(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)
        for connection in self._connections:
            connection.close()


class Quiet(BaseHTTPRequestHandler):
    """Answers 404 and logs nothing."""

    def do_HEAD(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Say nothing."""


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """`serve("ssh")` starts something that is no aggregator; returns its endpoint."""
    with zmq.Context() as context:
        stops: list[Callable[[], Any]] = []

        def tcp(*arguments: Any, **settings: Any) -> str:
            server = Server(*arguments, **settings)
            stops.append(server.stop)
            return server.endpoint

        def http() -> str:
            server = ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
            server.daemon_threads = True
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            stops.extend([server.server_close, thread.join, server.shutdown])
            return f"tcp://127.0.0.1:{server.server_port}"

        def zeromq(kind: int, *, is_curve: bool = False) -> str:
            made = context.socket(kind)
            made.linger = 0
            stops.append(made.close)
            if is_curve:
                made.curve_server = True
                made.curve_secretkey = zmq.curve_keypair()[1]
            return f"tcp://127.0.0.1:{made.bind_to_random_port('tcp://127.0.0.1')}"

        kinds: dict[str, Callable[[], str]] = {
            "http": http,
            "ssh": lambda: tcp(b"SSH-2.0-OpenSSH_9.2\r\n"),
            "mail": lambda: tcp(b"220 mail ready\r\n"),
            "sink": tcp,
            "hangs up": lambda: tcp(hangs_up=True),
            "pub": lambda: zeromq(zmq.PUB),
            "router": lambda: zeromq(zmq.ROUTER),
            "curve": lambda: zeromq(zmq.ROUTER, is_curve=True),
        }
        yield lambda kind: kinds[kind]()
        for stop in reversed(stops):
            stop()


def attach_and_collect(endpoint: str) -> gradwatch.Watch:
    """A watch with one record to send."""
    model = nn.Linear(2, 2)
    watch = gradwatch.attach(model, run="test", endpoint=endpoint)
    assert isinstance(watch, gradwatch.Watch)
    model(torch.ones(1, 2)).sum().backward()
    watch.collect()
    return watch


@pytest.mark.parametrize(
    ("kind", "speaks", "what"),
    [
        ("http", Speaks.HTTP, HTTP),
        ("ssh", Speaks.OTHER, "an SSH server"),
        ("mail", Speaks.OTHER, "a server that says b'220 mail ready\\r\\n'"),
        ("sink", Speaks.SILENCE, SILENT),
        ("hangs up", Speaks.SILENCE, SILENT),
        ("pub", Speaks.ZEROMQ, "a ZeroMQ socket of type PUB"),
        ("router", Speaks.ROUTER, "a ZeroMQ socket"),
        ("curve", Speaks.CURVE, "a ZeroMQ socket that asks for a key"),
    ],
)
def test_plain_bytes_show_what_it_is(
    serve: Callable[..., str], kind: str, speaks: Speaks, what: str
) -> None:
    found = look_at(serve(kind))

    assert (found.speaks, found.what) == (speaks, what)


def test_where_nothing_listens_there_is_nothing() -> None:
    port = ReservedPort()
    for endpoint in (port.endpoint, "ipc:///nowhere/socket", "tcp://no.such.host.invalid:1"):
        assert look_at(endpoint).speaks is Speaks.NOTHING
    port.close()


def test_an_aggregator_is_taken_for_none_of_these(aggregator: Sink) -> None:
    assert look_at(aggregator.endpoint).speaks is Speaks.ROUTER
    address = aggregator.endpoint.removeprefix("tcp://")
    assert look_at(f"tcp://127.0.0.1:0;{address}").speaks is Speaks.ROUTER


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract sockets")
def test_an_abstract_unix_socket_is_looked_at() -> None:
    endpoint = f"ipc://@gradwatch-{os.getpid()}"
    context = zmq.Context()
    with context.socket(zmq.ROUTER) as router:
        router.bind(endpoint)
        assert look_at(endpoint).speaks is Speaks.ROUTER
    context.term()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "at_the_end"),
    [
        ("http", f"{HTTP} listens there, that is no aggregator; set"),
        ("sink", f"{SILENT} listens there, it hangs, or is no aggregator; set"),
        ("pub", "a ZeroMQ socket of type PUB listens there, that is no aggregator; set"),
        ("router", "a ZeroMQ socket listens there, it hangs, or is no aggregator; set"),
        ("curve", "the aggregator asks for another key (GRADWATCH_KEYS); this process has none"),
    ],
)
def test_the_end_says_what_listens(
    serve: Callable[..., str], kind: str, at_the_end: str, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = serve(kind)
    attach_and_collect(endpoint).close()

    told = f"gradwatch: 3 pending records were not delivered to {endpoint}: {at_the_end}"
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert line.startswith(told)
    assert "\n" not in line


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ssh", "curve"])
def test_it_is_told_while_training_goes_on(
    serve: Callable[..., str], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    watch = attach_and_collect(f"tcp://127.0.0.1:9,{(endpoint := serve(kind))}")
    wait_until(lambda: f"no answer: {endpoint}: " in caplog.text, "the line in the log")
    watch.close()

    assert f": at {endpoint} " in caplog.messages[-1]
    assert caplog.text.count("no answer: ") == watch.stats()["faults"] == 1


@pytest.mark.slow
def test_once_an_aggregator_is_there_everything_goes_on(
    new_aggregator: NewAggregator, caplog: pytest.LogCaptureFixture
) -> None:
    context = zmq.Context()
    stranger = context.socket(zmq.PUB)
    port = ReservedPort()
    stranger.bind(port.endpoint)
    watch = attach_and_collect(port.endpoint)
    wait_until(lambda: "of type PUB" in caplog.text, "the line in the log")
    stranger.close(linger=0)
    context.term()
    aggregator = new_aggregator(port.endpoint)
    wait_until(lambda: watch.stats()["acked"] == 2, "everything is acknowledged")
    watch.close()
    port.close()

    assert len(aggregator.stored) == 3


@pytest.mark.slow
def test_an_answer_that_is_none_is_named_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """A ROUTER of something else answers by its own rules."""
    context = zmq.Context()
    with context.socket(zmq.ROUTER) as router:
        router.linger = 0
        endpoint = f"tcp://127.0.0.1:{router.bind_to_random_port('tcp://127.0.0.1')}"
        watch = attach_and_collect(endpoint)
        peer, *_ = router.recv_multipart()
        router.send_multipart([peer, b"what?"])
        wait_until(lambda: watch.stats()["faults"], "the answer is counted")
        watch.close()
    context.term()

    assert caplog.records[-1].getMessage() == (
        f"gradwatch: 3 pending records were not delivered to {endpoint}: what answers there is no "
        "aggregator (expected protocol version 1, got version 119, at message.version); set "
        "attach(endpoint=...) or GRADWATCH_ENDPOINT to where gradwatch serve takes records"
    )


@pytest.mark.slow
def test_an_aggregator_that_died_is_said_to_have_stopped_answering(
    new_aggregator: NewAggregator, caplog: pytest.LogCaptureFixture
) -> None:
    aggregator = new_aggregator()
    watch = attach_and_collect(aggregator.endpoint)
    wait_until(lambda: watch.stats()["acked"] == 2, "the first record is acknowledged")
    aggregator.stop()
    watch.collect()
    watch.close()

    line = caplog.records[-1].getMessage()
    said = f"gradwatch: 2 pending records were not delivered to {aggregator.endpoint}: the "
    assert line.startswith(said + "aggregator stopped answering ")
    assert line.endswith(" s ago")
