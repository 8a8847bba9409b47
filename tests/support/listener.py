"""A subscriber of an alert stream, in a thread."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import httpx

from tests.support.waiting import PATIENCE_S, wait_until


class Listener:
    """Collects the events of a stream from its construction until it is closed.

    Args:
        url: Address of the aggregator.
        path: The stream.
        after: The cursor after which to begin; None begins with what happens next.
    """

    def __init__(self, url: str, path: str, after: int | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.times_s: list[float] = []  # when each came, `time.monotonic()`
        self.ids: list[str] = []
        self.ended = threading.Event()
        self._open = threading.Event()
        self._headers = {} if after is None else {"Last-Event-ID": str(after)}
        self._client = httpx.Client(timeout=PATIENCE_S, trust_env=False)
        self._thread = threading.Thread(target=self._listen, args=(url + path,))
        self._thread.start()
        assert self._open.wait(PATIENCE_S)

    def _listen(self, url: str) -> None:
        with (
            contextlib.suppress(httpx.TransportError, httpx.StreamError),
            self._client.stream("GET", url, headers=self._headers) as response,
        ):
            response.raise_for_status()
            self._socket = response.extensions["network_stream"].get_extra_info("socket")
            for line in response.iter_lines():
                field, _, value = line.partition(": ")
                if field == "id":
                    self.ids.append(value)
                elif field == "data":
                    self.times_s.append(time.monotonic())
                    self.events.append(json.loads(value))
                # Only now is it sure from when on the stream misses nothing.
                self._open.set()
        self.ended.set()

    def cursors(self, count: int) -> list[int]:
        """Wait for so many events; return their cursors."""
        wait_until(lambda: len(self.events) >= count, f"{count} events")
        return [event["cursor"] for event in self.events]

    def close(self) -> None:
        """End the connection and the thread."""
        with contextlib.suppress(OSError):  # it ended before
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(PATIENCE_S)
        self._client.close()
        assert not self._thread.is_alive()


Listen: TypeAlias = Callable[..., Listener]
"""Type of the fixture `listen`: `listen(url, "/alerts/stream", after=0)`."""
