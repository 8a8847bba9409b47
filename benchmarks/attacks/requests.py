"""Requests: for lists that are long, and what is none."""

from __future__ import annotations

import http.client
import socket

from benchmarks.attacks.attack import Refused, Stop, Target, paced
from benchmarks.attacks.line import Line, Session
from gradwatch_wire import Hello


def list_loops(target: Target, stop: Stop, refused: Refused) -> None:
    """900 runs, and then `/runs` and `/metrics` asked for in turn without a pause."""
    line = Line(target, refused)
    for number in range(900):
        line.send(Session(Hello(run=f"listed-{number}", rank=0, world=1)).greeting(), stop)
    line.close()
    connection = http.client.HTTPConnection(*target.http, timeout=30)
    while not stop():
        for path in ("/runs", "/metrics"):
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                response.read()
            except (OSError, http.client.HTTPException):
                refused["requests dropped"] += 1
                connection.close()
            else:
                refused[f"HTTP {response.status}"] += response.status >= 400
    connection.close()


def garbage_http(target: Target, stop: Stop, refused: Refused) -> None:
    """Requests that are none, each over a connection of its own, 200/s."""
    for _ in paced(200, stop):
        try:
            with socket.create_connection(target.http, timeout=5.0) as one:
                one.sendall(b"\x00garbage\r\n\r\n")
                answer = one.recv(1 << 12)
        except OSError:
            refused["connections closed"] += 1
        else:
            refused[f"HTTP {answer[9:12].decode('ascii', 'replace')}"] += bool(answer)
