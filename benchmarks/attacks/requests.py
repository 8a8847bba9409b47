"""Requests: for lists that are long, and what is none."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Sequence

from benchmarks.attacks.attack import paced
from benchmarks.attacks.line import Line, Session
from gradwatch_wire import Hello


def list_loops(line: Line) -> None:
    """900 runs, and then `/runs` and `/metrics` asked for in turn without a pause."""
    for number in range(900):
        line.send(Session(Hello(run=f"listed-{number}", rank=0, world=1)).greeting())
    _ask_on(line, ("/runs", "/metrics"))


def deep_listings(line: Line) -> None:
    """`/runs` with curves, and alerts and pictures of the honest run, asked for without a pause."""
    picture = "/runs/honest/heatmap?columns=1024"
    _ask_on(line, ("/runs?spark=512&sort=worst", "/alerts?limit=1000", picture))


def curve_reads(line: Line) -> None:
    """Curves of all columns of the honest run in 4,096 points, asked for without a pause."""
    columns = "".join(f"&column={name}" for name in ("norm", "loss", "l2", "l1", "linf"))
    layers = "".join(f"&layer={name}" for name in ("embed", "block.0", "block.1", "head"))
    paths = (f"/runs/honest/series?points=4096&format=safetensors{columns}{layers}",)
    _ask_on(line, (*paths, "/runs/honest/rows", "/runs/honest/frames/1"))


def _ask_on(line: Line, paths: Sequence[str]) -> None:
    connection = http.client.HTTPConnection(*line.target.http, timeout=30)
    while not line.stop():
        for path in paths:
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                response.read()
            except (OSError, http.client.HTTPException):
                line.refused["requests dropped"] += 1
                connection.close()
            else:
                line.refused[f"HTTP {response.status}"] += response.status >= 400
    connection.close()


def garbage_http(line: Line) -> None:
    """Requests that are none, each over a connection of its own, 200/s."""
    for _ in paced(200, line.stop):
        try:
            with socket.create_connection(line.target.http, timeout=5.0) as one:
                one.sendall(b"\x00garbage\r\n\r\n")
                answer = one.recv(1 << 12)
        except OSError:
            line.refused["connections closed"] += 1
        else:
            line.refused[f"HTTP {answer[9:12].decode('ascii', 'replace')}"] += bool(answer)
