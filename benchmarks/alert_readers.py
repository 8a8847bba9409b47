"""500 readers of the alert stream, of whom 150 never read: when the others got each alert."""

from __future__ import annotations

import json
import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from benchmarks.report import quantile

NUM_READERS: Final = 500
NUM_DEAF: Final = 150
CONFIG: Final = f"""
[budgets]
streams_per_caller = {NUM_READERS}
http_connections = {2 * NUM_READERS}
"""
"""As many streams as there are readers, of one address, and as many other connections."""

REQUEST: Final = b"GET /alerts/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
PATIENCE_S: Final = 15.0

_EVENT: Final = re.compile(rb"id: (\d+)\ndata: (\{.*\})\n\n")


@dataclass(slots=True)
class _Reader:
    connection: socket.socket
    rest: bytes = b""
    cursors: set[int] = field(default_factory=set)


class AlertReaders:
    """The readers, all of this process.

    Args:
        address: Host and port of HTTP.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self.delays_ms: list[float] = []
        self.num_closed = 0
        self._sent_s: dict[int, float] = {}  # step -> when its record was sent
        self._steps: dict[int, int | None] = {}  # cursor -> step at which its alert fired
        self._deaf = [_connect(address, deaf=True) for _ in range(NUM_DEAF)]
        self._readers: dict[int, _Reader] = {}
        self._poller = select.poll()
        for _ in range(NUM_READERS - NUM_DEAF):
            one = _connect(address)
            self._readers[one.fileno()] = _Reader(one)
            self._poller.register(one, select.POLLIN)
        self._read_until(self._all_begun)

    def note_sent(self, step: int) -> None:
        self._sent_s[step] = time.monotonic()

    def read(self, until_s: float) -> None:
        """Read what comes until some time."""
        while (left_s := until_s - time.monotonic()) > 0:
            for number, _ in self._poller.poll(1e3 * left_s):
                self._take(number)

    def finish(self) -> Iterator[str]:
        """Read what is on its way; yield what some reader did not get, or lost."""
        self._read_until(self._all_have_all)
        if not self._steps:
            yield "no alert came"
        missing = sum(len(self._steps.keys() - reader.cursors) for reader in self._readers.values())
        if missing:
            yield f"{missing} alerts of {len(self._steps)} did not come to one of the readers"
        if self.num_closed:
            yield f"{self.num_closed} streams of readers were closed"

    def told(self) -> Iterator[str]:
        """Yield what was measured, in a line."""
        if self.delays_ms:
            p50, p99 = (quantile(self.delays_ms, share) for share in (0.5, 0.99))
            yield (
                f"{len(self._readers)} readers got {len(self._steps)} alerts each, those that "
                f"begin {p50:.0f} ms after the record was sent (p99 {p99:.0f} ms, "
                f"max {max(self.delays_ms):.0f} ms)"
            )

    def close(self) -> None:
        for one in (*self._deaf, *(reader.connection for reader in self._readers.values())):
            one.close()

    def _read_until(self, is_done: Callable[[], bool]) -> None:
        end_s = time.monotonic() + PATIENCE_S
        while not is_done() and time.monotonic() < end_s:
            self.read(time.monotonic() + 0.02)

    def _all_begun(self) -> bool:
        return all(b"alerts after" in reader.rest for reader in self._readers.values())

    def _all_have_all(self) -> bool:
        return all(len(reader.cursors) == len(self._steps) for reader in self._readers.values())

    def _take(self, number: int) -> None:
        own = self._readers[number]
        data = b""
        with suppress(OSError):
            data = own.connection.recv(1 << 16)
        now_s = time.monotonic()
        if not data:
            self._poller.unregister(number)
            self.num_closed += 1
        own.rest += data
        end = 0
        for found in _EVENT.finditer(own.rest):
            end = found.end()
            cursor = int(found[1])
            own.cursors.add(cursor)
            if cursor not in self._steps:  # the same text for all of them
                self._steps[cursor] = _fired_step(json.loads(found[2]))
            step = self._steps[cursor]
            if step in self._sent_s:
                self.delays_ms.append(1e3 * (now_s - self._sent_s[step]))
        own.rest = own.rest[end:]


def _fired_step(alert: dict[str, object]) -> int | None:
    """Return the step at which an alert fired, None of an event that is not that it did."""
    step = alert["fired_step"]
    is_first = alert["state"] == "firing" and alert["update"] is None
    return step if is_first and isinstance(step, int) else None


def _connect(address: tuple[str, int], *, deaf: bool = False) -> socket.socket:
    made = socket.socket()
    if deaf:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # full after few alerts
    made.settimeout(PATIENCE_S)
    made.connect(address)
    made.sendall(REQUEST)
    made.setblocking(False)
    return made
