"""A reader of the alert stream who goes to the next node where the one he reads from is gone."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import httpx
import httpx_sse

from benchmarks.cluster_faults.arrivals import Arrival

SILENT_S: Final = 20.0
"""The stream has a sign of life every 15 s: one that has none for so long is left."""

PAUSE_S: Final = 0.1
"""Before another node is asked."""


class Reader(threading.Thread):
    """Reads all alerts from the first on, until it is stopped.

    Args:
        urls: Of the nodes, the one to begin with first.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.arrivals: list[Arrival] = []
        self._urls = list(urls)
        self._cursor = 0
        self._stopping = threading.Event()

    def run(self) -> None:
        """Read, and begin anew at the next node whenever a stream ends."""
        timeout = httpx.Timeout(SILENT_S, connect=1.0)
        with httpx.Client(timeout=timeout, trust_env=False) as client:
            while not self._stopping.is_set():
                with suppress(httpx.HTTPError, httpx_sse.SSEError):
                    self._read(client, f"{self._urls[0]}/alerts/stream")
                self._urls.append(self._urls.pop(0))
                self._stopping.wait(PAUSE_S)

    def _read(self, client: httpx.Client, url: str) -> None:
        headers = {"Last-Event-ID": str(self._cursor)}
        with httpx_sse.connect_sse(client, "GET", url, headers=headers) as source:
            for message in source.iter_sse():
                if message.data:
                    self._take(json.loads(message.data))
                if self._stopping.is_set():
                    return

    def _take(self, event: dict[str, Any]) -> None:
        self._cursor = int(event["cursor"])
        self.arrivals.append(Arrival.of(event, time.monotonic()))

    def stop(self) -> None:
        """End with the next message; nobody waits for it."""
        self._stopping.set()
