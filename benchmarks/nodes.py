"""Faults of nodes over PostgreSQL: records lost and doubled, and the time until one goes on.

A real PostgreSQL, two nodes, a training process with the real client, real signals. What was stored
is counted in the log in the database, session by session.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

import httpx

from benchmarks.harness import wait_until, workers
from benchmarks.reliability import RUN, Job, train
from benchmarks.report import show
from gradwatch_server.storage.encoding import unpack_entries
from gradwatch_wire import SEQUENCED, decode
from tests.support.aggregator import Aggregator
from tests.support.postgres import PostgresServer
from tests.support.postgres_database import FreshDatabase
from tests.support.relay import Relay

RATE: Final = 50.0
STEPS: Final = 900
LAYERS: Final = 20
CATCH_UP_S: Final = 60.0
ANSWER_S: Final = 0.3
PAUSE_S: Final = 8.0


class Nodes:
    """Two nodes over a database; the first one has the lease, and a relay between them."""

    def __init__(self, server: PostgresServer, directory: Path) -> None:
        self.server = server
        self.database = FreshDatabase(server)
        address = self.database.url.rpartition("@")[2].partition("/")[0]
        self.relay = Relay(f"tcp://{address}")
        through = self.database.url.replace(address, self.relay.endpoint.removeprefix("tcp://"))
        self.both = [
            Aggregator(directory / name / "data", GRADWATCH_STORE=url)
            for name, url in (("one", through), ("two", self.database.url))
        ]
        self.first = self.both[0]
        for node in self.both:
            node.start()

    def step(self) -> int:
        """Return the newest step that any node has judged, -1 for none."""
        for node in self.both:
            with contextlib.suppress(httpx.HTTPError):
                answer = httpx.get(f"{node.url}/runs/{RUN}", timeout=ANSWER_S, trust_env=False)
                if answer.is_success and (step := answer.json()["step"]) is not None:
                    return int(step)
        return -1

    def logged(self) -> Counter[tuple[bytes, int]]:
        """Return how often the log has each record, by session and number."""
        found: Counter[tuple[bytes, int]] = Counter()
        for (body,) in self.database.execute("SELECT body FROM gradwatch.log"):
            for _, entry in unpack_entries(body):
                if entry.kind in SEQUENCED and entry.payload is not None:
                    envelope = decode(entry.payload)
                    found[envelope.session, envelope.seq] += bool(envelope.seq)
        return +found

    def close(self) -> None:
        for node in self.both:
            node.close()
        self.relay.close()


def _kill(nodes: Nodes) -> None:
    nodes.first.stop(signal.SIGKILL)


def _end(nodes: Nodes) -> None:
    nodes.first.stop()


def _stop(nodes: Nodes) -> None:
    nodes.first.send(signal.SIGSTOP)
    time.sleep(PAUSE_S)
    nodes.first.send(signal.SIGCONT)


def _cut(nodes: Nodes) -> None:
    nodes.relay.hang()
    time.sleep(PAUSE_S)
    nodes.relay.resume()


def _restart_database(nodes: Nodes) -> None:
    nodes.server.kill()
    nodes.server.start()


FAULTS: Final[dict[str, Callable[[Nodes], None]]] = {
    "node killed": _kill,
    "node told to stop": _end,
    f"node stopped for {PAUSE_S:g} s": _stop,
    f"node cut off from the database for {PAUSE_S:g} s": _cut,
    "PostgreSQL killed and started": _restart_database,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of one fault.

    Args:
        produced: Records that the client numbered.
        stored: Records in the log.
        doubled: Records that are there more than once.
        unjudged_s: The longest time in which no node had judged a further step.
    """

    produced: int
    stored: int
    doubled: int
    unjudged_s: float


def run(*, quick: bool = False, rounds: int = 20) -> None:
    """Measure and print."""
    rows = []
    server = PostgresServer()
    try:
        for name, fault in FAULTS.items():
            outcomes = [_suffer(server, fault) for _ in range(1 if quick else rounds)]
            produced = sum(outcome.produced for outcome in outcomes)
            stored = sum(outcome.stored for outcome in outcomes)
            doubled = sum(outcome.doubled for outcome in outcomes)
            times = [outcome.unjudged_s for outcome in outcomes]
            numbers = (len(outcomes), produced, produced - stored, doubled)
            longest = f"{median(times):.1f}", f"{max(times):.1f}"
            rows.append([name, *(f"{number:,}" for number in numbers), *longest])
    finally:
        server.close()
    show(
        "nodes",
        ("fault", "times", "records", "lost", "doubled", "unjudged s: median", "longest"),
        rows,
        f"One training process of {LAYERS} layers, {RATE:g} records/s; two nodes and PostgreSQL on "
        "one machine. unjudged: the longest time in which no further step was judged.",
    )


def _suffer(server: PostgresServer, fault: Callable[[Nodes], None]) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="gradwatch-bench-") as directory:
        nodes = Nodes(server, Path(directory))
        try:
            return _outcome(nodes, fault)
        finally:
            nodes.close()


class Gaps(threading.Thread):
    """Asks for the newest step until it is stopped; `longest_s` without a further one."""

    def __init__(self, nodes: Nodes) -> None:
        super().__init__(daemon=True)
        self.longest_s = 0.0
        self._nodes = nodes
        self._stopping = threading.Event()

    def run(self) -> None:
        newest, since_s = -1, time.monotonic()
        while not self._stopping.wait(0.02):
            step = self._nodes.step()
            self.longest_s = max(self.longest_s, time.monotonic() - since_s)
            if step > newest:
                newest, since_s = step, time.monotonic()

    def stop(self) -> float:
        """Return the longest time without a further step."""
        self._stopping.set()
        self.join()
        return self.longest_s


def _outcome(nodes: Nodes, fault: Callable[[Nodes], None]) -> Outcome:
    endpoints = ",".join(node.ingest for node in nodes.both)
    with workers(train, [Job(endpoints, STEPS, RATE, LAYERS)]) as (worker,):
        wait_until(lambda: nodes.step() > RATE, CATCH_UP_S, "the run")
        gaps = Gaps(nodes)
        gaps.start()
        fault(nodes)
        before = nodes.step()
        wait_until(lambda: nodes.step() > before + RATE, CATCH_UP_S, f"steps after {before}")
        unjudged_s = gaps.stop()
        produced = int(worker.receive())
    wait_until(lambda: len(nodes.logged()) >= produced, CATCH_UP_S, "all records")
    stored = nodes.logged()
    return Outcome(produced, len(stored), sum(stored.values()) - len(stored), unjudged_s)
