"""Seconds from the start of a killed aggregator until it has all runs, beside an empty one.

Runs of one rank send as fast as they are acknowledged; the aggregator is a real `gradwatch serve`
and is killed with SIGKILL in the middle of it. When it is ready again it has every run, with a
full window and each acknowledged record.
"""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Iterator
from typing import Final

import zmq

from benchmarks.harness import Aggregator, aggregator
from benchmarks.report import ratios, show, with_range
from benchmarks.senders import COLUMNS, LAYERS, VARIANTS, healthy_columns, manifest_of, stats_of
from tests.support.peer import Peer

WINDOW: Final = 512
IN_FLIGHT: Final = 4
"""Records of a run that are sent and not acknowledged, at most."""


class Crowd:
    """Peers that send in turns, a run each."""

    def __init__(self, server: Aggregator, runs: int, context: zmq.Context[zmq.Socket[bytes]]):
        self.acked = dict.fromkeys((f"run-{number:03}" for number in range(runs)), 0)
        self._peers = [Peer(server.ingest, run, context=context) for run in self.acked]
        self._numbers = random.Random(1)
        self._columns = healthy_columns(self._numbers)

    def greet(self) -> None:
        """Say HELLO for every run; go on behind what the aggregator has."""
        for peer in self._peers:
            welcome = peer.greet()
            assert self.acked[peer.greeting.run] <= welcome.acked <= peer.seq, peer.greeting
            peer.seq = welcome.acked

    def steps(self, count: int) -> None:
        """Send steps of every run; before its first one its manifest."""
        for _ in range(count):
            for peer in self._peers:
                if not peer.seq:
                    peer.send(manifest_of(LAYERS))
                columns = self._columns[peer.seq % VARIANTS]
                peer.send(stats_of(peer.seq - 1, columns, self._numbers))
            self.wait(IN_FLIGHT)

    def wait(self, in_flight: int = 0) -> None:
        """Wait until no run has more than so many records that are not acknowledged."""
        for peer in self._peers:
            run = peer.greeting.run
            if self.acked[run] < peer.seq - in_flight:
                self.acked[run] = peer.acked(peer.seq - in_flight).acked

    def check(self, server: Aggregator, frames: int) -> None:
        """See that nothing is missing."""
        stored = {run["run"]: run["records"]["stored"] for run in server.json("/runs")}
        for peer in self._peers:
            run = peer.greeting.run
            assert self.acked[run] <= stored[run] <= peer.seq, (run, stored[run], self.acked[run])
        for run in list(stored)[:: max(1, len(stored) // 5)]:
            assert server.health(run)["window"]["steps"] >= frames, run

    def close(self) -> None:
        for peer in self._peers:
            peer.close()


def run(*, quick: bool = False, rounds: int = 5, runs: int = 100) -> None:
    """Measure and print."""
    steps = WINDOW + 8
    if quick:
        runs, steps, rounds = 5, 20, 1
    empty = [_empty_start() for _ in range(rounds)]
    with aggregator() as server, _crowd(server, runs) as crowd:
        crowd.greet()
        crowd.steps(steps)
        crowd.wait()
        killed = [_kill(server, crowd, min(steps, WINDOW)) for _ in range(rounds)]
        recovered = [whole for _, whole in killed]
        size_mb = sum(file.stat().st_size for file in server.directory.iterdir()) / 1e6
    show(
        "recovery",
        ("start", "seconds to ready", "seconds to all runs", "ratio"),
        [
            ["empty", with_range(empty, ".2f"), with_range(empty, ".2f"), "1"],
            [
                f"after SIGKILL, {runs} runs",
                with_range([ready for ready, _ in killed], ".2f"),
                with_range(recovered, ".2f"),
                with_range(ratios(recovered, empty), ".1f"),
            ],
        ],
        f"{runs} runs x {min(steps, WINDOW)} frames x {LAYERS} layers x {len(COLUMNS)} columns; "
        f"{rounds} kills while all runs send as fast as they are acknowledged; "
        f"data directory {size_mb:,.0f} MB.",
        "ready: /readyz answers 200; all runs: it says so; then each run has its window and each "
        "acknowledged record.",
    )


def _empty_start() -> float:
    with aggregator() as server:
        return server.started_s


@contextlib.contextmanager
def _crowd(server: Aggregator, runs: int) -> Iterator[Crowd]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    made = Crowd(server, runs, context)
    try:
        yield made
    finally:
        made.close()
        context.term()


def _kill(server: Aggregator, crowd: Crowd, frames: int) -> tuple[float, float]:
    crowd.steps(5)
    server.stop(signal.SIGKILL)
    server.start()
    crowd.check(server, frames)
    crowd.greet()
    return server.started_s, server.recovered_s
