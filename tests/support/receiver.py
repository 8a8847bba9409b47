"""A webhook's receiver: a real HTTP server that takes what comes, refuses it, or says nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeAlias

from tests.support.waiting import PATIENCE_S, wait_until

SECRET: Final = "s3cr3t-t0ken-Zq81"
"""In the path of each receiver's URL, as chats have it."""


class Receiver:
    """Keeps what it is sent.

    Args:
        port: Where it listens, 0 for any.
        is_slow: Whether it says a little again and again, and never comes to an answer.

    Attributes:
        status: What it answers.
        messages: The bodies that it answered with 2xx, as JSON.
        arrived_ns: When each of them was taken, nanoseconds since the epoch.
        num_asked: Requests so far, whatever became of them.
    """

    def __init__(self, port: int = 0, *, is_slow: bool = False) -> None:
        self.status = 200
        self._is_slow = is_slow
        self.messages: list[Any] = []
        self.arrived_ns: list[int] = []
        self.num_asked = 0
        self._closed = threading.Event()
        self._goes_on = threading.Event()
        self._goes_on.set()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.receiver = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """An apprise URL that leads here."""
        return f"json://ada:{SECRET}@127.0.0.1:{self.port}/hooks/{SECRET}"

    @property
    def titles(self) -> list[str]:
        """The first lines of what it was sent."""
        return [message["title"] for message in self.messages]

    @property
    def text(self) -> str:
        return "\n".join(f"{message['title']}\n{message['message']}" for message in self.messages)

    def hang(self) -> None:
        """Answer nothing from now on."""
        self._goes_on.clear()

    def go_on(self) -> None:
        """Answer again, also what waits."""
        self._goes_on.set()

    def has(self, text: str) -> None:
        """Wait until it was sent a text."""
        wait_until(lambda: text in self.text, f"{text!r} in what was sent: {self.text}")

    def asked(self, times: int) -> None:
        """Wait until it was asked so often."""
        wait_until(lambda: self.num_asked >= times, f"{times} requests, not {self.num_asked}")

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers.get("content-length", 0))
        body = handler.rfile.read(length)
        self.num_asked += 1
        self._goes_on.wait(PATIENCE_S)
        while self._is_slow and not self._closed.wait(0.05):
            handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self.status < 300:
            self.arrived_ns.append(time.time_ns())
            self.messages.append(json.loads(body))
        handler.send_response(self.status)
        handler.send_header("content-length", "0")
        handler.end_headers()

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        self._goes_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    receiver: Receiver

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: who asked may have gone meanwhile."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        server.receiver.answer(self)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - of the base class
        """Say nothing."""


Receive: TypeAlias = Callable[..., Receiver]
"""Type of the fixture `receive`: start a receiver."""
