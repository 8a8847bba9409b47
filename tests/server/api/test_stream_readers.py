"""Many readers of the alert stream over real sockets, some of whom never read."""

from __future__ import annotations

import json
import math
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn

from gradwatch_server.api import alert_stream as alert_stream_module
from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.app import make_app
from gradwatch_server.api.connection_limits import ConnectionLimits
from gradwatch_server.api.connections import HttpConnection
from gradwatch_server.budgets import Budgets
from gradwatch_server.core.alerting.rules import Rules
from tests.support.engine import Start
from tests.support.listener import Listen
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

NAN = math.nan
NUM_READING, NUM_SILENT = 30, 20
NUM_ALERTS = 60


class Server:
    """The app under uvicorn, in a thread, over an engine of this process."""

    def __init__(self, running: Any) -> None:
        self.stream = AlertStream(running.store.alert_events)
        running.engine._on_alerts = self.stream.wake
        self.app = make_app(running.engine, running.store.alert_events, self.stream)
        self.limit = self.app.state.shared.stream_limit
        limits = ConnectionLimits(running.engine.budget_use)
        config = uvicorn.Config(
            self.app,
            port=0,
            log_config=None,
            http=HttpConnection.under(limits),
            timeout_graceful_shutdown=1,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        wait_until(lambda: self._server.started)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    @property
    def num_open(self) -> int:
        return len(self._server.server_state.connections)

    def close(self) -> None:
        self.stream.close()
        self._server.should_exit = True
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def server(start: Start) -> Iterator[Callable[..., Any]]:
    made: list[Server] = []

    def begin(**budgets: Any) -> Any:
        rules = Rules.model_validate({"nonfinite": {"clear_steps": 1}})
        running = start(rules=rules, budgets=Budgets(**budgets))
        made.append(Server(running))
        return running, made[-1]

    yield begin
    for one in made:
        one.close()


def subscribe_silently(url: str) -> socket.socket:
    """Ask for the stream with a tiny window, and never read."""
    parts = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect((parts.hostname, parts.port))
    connection.sendall(b"GET /alerts/stream HTTP/1.1\r\nHost: x\r\nLast-Event-ID: 0\r\n\r\n")
    return connection


@pytest.mark.exhaustive
def test_readers_who_never_read_lose_their_place_and_harm_nobody(
    server: Callable[..., Any], listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S30: all others see each event once and in order, and each event is encoded once."""
    running, http = server(http_wait_s=1.0)
    encoded: list[int] = []
    encode = alert_stream_module.encode_event

    def counted(event: Any) -> Any:
        encoded.append(event.cursor)
        return encode(event)

    monkeypatch.setattr(alert_stream_module, "encode_event", counted)
    silent = [subscribe_silently(http.url) for _ in range(NUM_SILENT)]
    readers = [listen(http.url, "/alerts/stream", after=0) for _ in range(NUM_READING)]
    wait_until(lambda: http.num_open == NUM_READING + NUM_SILENT)

    names = [f"{'layer' * 80}.{i}" for i in range(20)]
    peer = running.peer(run="gpt").attach(names)
    for step in range(NUM_ALERTS):
        peer.stats(2 * step, [NAN] * 20, loss=1.0)
        peer.stats(2 * step + 1, [1.0] * 20, loss=1.0)
    peer.acked()

    expected = list(range(1, 2 * NUM_ALERTS + 1))
    for reader in readers:
        assert reader.cursors(len(expected)) == expected
    assert sorted(encoded) == expected
    assert len(json.dumps(readers[0].events)) > 500_000
    wait_until(lambda: http.num_open == NUM_READING, "the places of the silent are free")
    late = listen(http.url, "/alerts/stream", after=7)
    assert late.cursors(len(expected) - 7) == expected[7:]
    for connection in silent:
        connection.close()
