"""Connections that are held, and say nothing or do not listen."""

from __future__ import annotations

import select
import socket
from contextlib import suppress

from benchmarks.attacks.attack import paced
from benchmarks.attacks.line import Line
from benchmarks.attacks.records import flap


def idle_http(line: Line) -> None:
    """1,500 HTTP connections that never end their first line; one that is closed is replaced."""
    _hold(line, line.target.http, b"GET / HT", 1_500)


def slow_bodies(line: Line) -> None:
    """500 requests with a body of which nothing but the first byte ever comes."""
    head = b"POST /silences HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    _hold(line, line.target.http, head + b"Content-Length: 1000\r\n\r\n{", 500)


def idle_ingest(line: Line) -> None:
    """1,500 connections to the ingest port that say nothing, each replaced when closed."""
    _hold(line, line.target.ingest, b"", 1_500)


def _hold(line: Line, address: tuple[str, int], first: bytes, most: int) -> None:
    held: set[socket.socket] = set()
    for _ in paced(200, line.stop):
        for one in _closed(held):
            held.discard(one)
            one.close()
            line.refused["connections closed"] += 1
        try:
            for _ in range(min(50, most - len(held))):
                held.add(_connect(address, first))
        except OSError:
            line.refused["connections not taken"] += 1
    for one in held:
        one.close()


def deaf_readers(line: Line) -> None:
    """500 alert streams of which 150 are never read, while alerts come and go."""
    request = b"GET /alerts/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    deaf, heard = [], set()
    with suppress(OSError):
        for number in range(500):
            reader = _connect(line.target.http, request)
            deaf.append(reader) if number < 150 else heard.add(reader)

    stop = line.stop

    def stop_reading() -> bool:
        for one in _closed(heard):
            heard.discard(one)
            one.close()
            line.refused["streams closed"] += 1
        return stop()

    line.stop = stop_reading
    flap(line, [f"layer{number}" for number in range(40)], {})
    for one in (*deaf, *heard):
        one.close()


def _connect(address: tuple[str, int], first: bytes) -> socket.socket:
    made = socket.create_connection(address, timeout=1.0)
    made.setblocking(False)
    made.sendall(first)
    return made


def _closed(held: set[socket.socket]) -> list[socket.socket]:
    """Return those that the other side closed; whatever else it says is thrown away."""
    found = []
    poller = select.poll()
    by_number = {one.fileno(): one for one in held}
    for number in by_number:
        poller.register(number, select.POLLIN)
    for number, _ in poller.poll(0):
        try:
            data = by_number[number].recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            found.append(by_number[number])
    return found
