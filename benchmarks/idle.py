"""CPU time and memory of the aggregator while thousands of sessions say no more than BEAT.

The peer is `bare.py`, which unpacks each BEAT and answers it, under the same connections. After the
measurement one of the senders is stopped: its connections end within the TTL of their heartbeats.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Final

import psutil
import zmq

from benchmarks.bare import run_bare
from benchmarks.harness import Pipe, Worker, aggregator, cpu_seconds, rss_mb, wait_until, workers
from benchmarks.report import show
from gradwatch._transport.connection import SOCKET_OPTIONS
from gradwatch_wire import Beat, Envelope, Hello, encode
from gradwatch_wire.session.timing import BEAT_EVERY_S

RANKS: Final = 64
PER_PROCESS: Final = 2_500
OPENED_PER_S: Final = 1_000.0
SLICES: Final = 200
"""Parts of a sender's sessions that say BEAT one after another: each has its own time."""

TTL_S: Final = SOCKET_OPTIONS[zmq.HEARTBEAT_TTL] / 1e3
CONFIG: Final = "[budgets]\ningest_connections = 20000\n"
"""As many as there may be files: the port takes none above its budget."""


@dataclass(frozen=True, slots=True)
class Work:
    """Sessions of one process: where they attach, and the numbers of the first and the last."""

    endpoint: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU as a share of one core, and kB of memory that each session adds."""

    core: float
    memory_kb: float


def run(*, quick: bool = False, sessions: int = 4_000, seconds: float = 20.0) -> None:
    """Measure and print."""
    if quick:
        sessions, seconds = 64, 2.0
    with aggregator(CONFIG) as server:
        pid, before_mb = server.process.pid, server.rss_mb
        with _crowd(server.ingest, sessions) as crowd:
            own = _measure(pid, before_mb, sessions, seconds)
            ended_s = _stop(crowd[0], pid)
    with workers(run_bare, [None]) as (receiver,):
        endpoint, before_mb = receiver.receive(), rss_mb(receiver.pid)
        with _crowd(endpoint, sessions):
            bare = _measure(receiver.pid, before_mb, sessions, seconds)
        receiver.tell("stop")
    show(
        "idle",
        ("receiver", "share of a core", "ratio", "us a BEAT", "kB a session"),
        [_row("gradwatch", own, bare, sessions), _row("bare loop", bare, bare, sessions)],
        f"{sessions:,} sessions, {RANKS} of each run, a connection each; a BEAT every "
        f"{BEAT_EVERY_S:.0f} s; {seconds:.0f} s.",
        f"The connections of a stopped sender were gone after {ended_s:.1f} s; the TTL of their "
        f"heartbeats is {TTL_S:.0f} s.",
    )


def _row(name: str, own: Cost, bare: Cost, sessions: int) -> list[str]:
    beats_per_s = sessions / BEAT_EVERY_S
    return [
        name,
        f"{own.core:.1%}",
        f"{own.core / bare.core:.1f}",
        f"{1e6 * own.core / beats_per_s:.1f}",
        f"{own.memory_kb:.1f}",
    ]


def _measure(pid: int, before_mb: float, sessions: int, seconds: float) -> Cost:
    """Return what the sessions cost a receiver that had so many MB before them."""
    time.sleep(2 * BEAT_EVERY_S)
    began_s, cpu_s = time.monotonic(), cpu_seconds(pid)
    time.sleep(seconds)
    core = (cpu_seconds(pid) - cpu_s) / (time.monotonic() - began_s)
    return Cost(core, 1e3 * (rss_mb(pid) - before_mb) / sessions)


def _stop(sender: Worker, pid: int) -> float:
    """Stop a sender; return the seconds until the receiver has none of its connections."""
    num_open = _connections(pid)
    os.kill(sender.pid, signal.SIGSTOP)
    num_left, began_s = num_open - min(PER_PROCESS, num_open), time.monotonic()
    wait_until(lambda: _connections(pid) <= num_left, 10 * TTL_S, "the connections to end")
    return time.monotonic() - began_s


def _connections(pid: int) -> int:
    """Return the connections that a process has accepted."""
    connections = psutil.Process(pid).net_connections("tcp")
    return sum(each.status == psutil.CONN_ESTABLISHED for each in connections)


@contextmanager
def _crowd(endpoint: str, sessions: int) -> Iterator[Sequence[Worker]]:
    """Open the sessions; go on once all of them say BEAT."""
    jobs = [
        Work(endpoint, first, min(first + PER_PROCESS, sessions))
        for first in range(0, sessions, PER_PROCESS)
    ]
    with workers(run_sender, jobs) as crowd:
        for worker in crowd:
            assert worker.receive() == "welcomed"
        yield crowd


def run_sender(work: Work, pipe: Pipe) -> None:
    """Open the sessions, tell the parent, and say BEAT for each until killed."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    context.max_sockets = PER_PROCESS + 10
    lines = []
    for number in range(work.first, work.last):
        socket = context.socket(zmq.DEALER)
        for option, value in SOCKET_OPTIONS.items():
            socket.setsockopt(option, value)
        socket.connect(work.endpoint)
        session = number.to_bytes(16, "big")
        hello = Hello(run=f"idle{number // RANKS}", rank=number % RANKS, world=RANKS, credit=True)
        socket.send(encode(Envelope(session=session, record=hello)))
        lines.append((socket, encode(Envelope(session=session, record=Beat(last_step=7)))))
        time.sleep(1 / OPENED_PER_S)
    for socket, _ in lines:
        if not socket.poll(60_000):
            raise TimeoutError("no WELCOME")
    pipe.send("welcomed")
    due_s = time.monotonic()
    for turn in cycle(range(SLICES)):
        for socket, beat in lines[turn::SLICES]:
            while socket.poll(0):
                socket.recv()
            socket.send(beat)
        due_s += BEAT_EVERY_S / SLICES
        time.sleep(max(0.0, due_s - time.monotonic()))
