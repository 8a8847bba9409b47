"""Processes for the benchmarks: an aggregator of one's own, and workers that answer over a pipe.

Each is ended by its own pid, whatever happens, and everything listens on loopback only.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import httpx
import psutil

import tests.support.aggregator as aggregator_process
from gradwatch_server.storage.sqlite.history import read_log
from gradwatch_wire import SEQUENCED, decode

ANSWER_TIMEOUT_S: Final = 600.0

Name = TypeVar("Name")
Pipe: TypeAlias = "Connection[Any, Any]"

_spawn = multiprocessing.get_context("spawn")


class Aggregator(aggregator_process.Aggregator):
    """A `gradwatch serve` process of the tests, whose starts are measured.

    `started_s` is the time from the start of the process to the first answer of `/readyz`,
    `recovered_s` that until all of its runs are in memory.
    """

    started_s = recovered_s = 0.0

    def start(self) -> None:
        """Start a process and wait until all runs are in memory."""
        began = time.perf_counter()
        super().start()
        self.started_s = time.perf_counter() - began
        while self.json("/readyz").get("recovering"):
            time.sleep(0.01)
        self.recovered_s = time.perf_counter() - began

    def find(self, path: str) -> Any:
        """Return what the HTTP API answers, None if there is no such thing yet."""
        response = self.get(path)
        if response.status_code == httpx.codes.NOT_FOUND:
            return None
        return response.raise_for_status().json()

    def records(self, run: str) -> dict[str, int]:
        """Return the run's records as `/health` counts them, nothing while it is not known."""
        try:
            report = self.find(f"/runs/{run}/health")
        except httpx.HTTPError:
            return {}
        found: dict[str, int] = report["records"] if report else {}
        return found

    def pause(self, seconds: float) -> None:
        """Stop the process for a while."""
        self.send(signal.SIGSTOP)
        time.sleep(seconds)
        self.send(signal.SIGCONT)

    @property
    def cpu_s(self) -> float:
        return cpu_seconds(self.process.pid)

    @property
    def written_bytes(self) -> int:
        """Bytes that the process has caused to be written to the disk."""
        return int(psutil.Process(self.process.pid).io_counters().write_bytes)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the messages of the records that were stored."""
        found = re.search(
            r"^gradwatch_stored_bytes_total (\S+)$", self.get("/metrics").text, re.MULTILINE
        )
        assert found is not None
        return round(float(found[1]))

    @property
    def rss_mb(self) -> float:
        return rss_mb(self.process.pid)


@contextlib.contextmanager
def aggregator(
    config: str = "", *, is_started: bool = True, files: tuple[int, int] | None = None
) -> Iterator[Aggregator]:
    """Run an aggregator on loopback ports, in a directory that is removed with it.

    Args:
        config: Text of its configuration file.
        is_started: Whether it is started before it is handed out.
        files: Files that it may open, the limit in force and the highest; None for as many as we.
    """
    with tempfile.TemporaryDirectory(prefix="gradwatch-bench-") as name:
        file = Path(name) / "gradwatch.toml"
        file.write_text(config)
        made = Aggregator(Path(name) / "data", "--config", str(file))
        made.files = files
        try:
            if is_started:
                made.start()
            yield made
        finally:
            made.close()


def logged(directory: Path) -> Counter[tuple[bytes, int]]:
    """Return how often the log of a data directory has each record, by session and number."""
    found: Counter[tuple[bytes, int]] = Counter()
    for entry in read_log(directory):
        if entry.kind in SEQUENCED and entry.payload is not None:
            envelope = decode(entry.payload)
            found[envelope.session, envelope.seq] += bool(envelope.seq)
    return +found


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that runs one function of ours."""

    pid: int
    pipe: Pipe

    def tell(self, message: Any) -> None:
        self.pipe.send(message)

    def receive(self) -> Any:
        """Return its next message.

        Raises:
            EOFError: If it died; it has printed why.
            TimeoutError: If it says nothing.
        """
        if not self.pipe.poll(ANSWER_TIMEOUT_S):
            msg = f"worker {self.pid} says nothing"
            raise TimeoutError(msg)
        return self.pipe.recv()


@contextlib.contextmanager
def workers(target: Callable[[Any, Pipe], None], jobs: Sequence[Any]) -> Iterator[list[Worker]]:
    """Run `target(job, pipe)` in a fresh process for each job."""
    processes = []
    found: list[Worker] = []
    try:
        for job in jobs:
            ours, theirs = _spawn.Pipe()
            process = _spawn.Process(target=_work, args=(target, job, theirs), daemon=True)
            process.start()
            processes.append(process)
            theirs.close()
            assert process.pid is not None
            found.append(Worker(process.pid, ours))
        yield found
    finally:
        for process in processes:
            process.join(0.5)
            process.kill()
            process.join()


def _work(target: Callable[[Any, Pipe], None], job: Any, pipe: Pipe) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C reaches us too; the parent ends us
    target(job, pipe)


def turns(names: Sequence[Name], rounds: int) -> Iterator[Name]:
    """Yield all names round by round, in an order that rotates from round to round."""
    for number in range(rounds):
        start = number % len(names)
        yield from (*names[start:], *names[:start])


def chosen(names: Iterable[str], only: str) -> list[str]:
    """Return the names that contain *only*; end the process if there is none."""
    every = list(names)
    found = [name for name in every if only in name]
    if not found:
        sys.exit(f"--only: nothing is called like {only!r}; there are: {', '.join(every)}")
    return found


def unused_endpoint() -> str:
    """Return an endpoint where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll a condition.

    Raises:
        TimeoutError: If it does not come true in time.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            msg = f"waited {timeout_s:g} s for {what}"
            raise TimeoutError(msg)
        time.sleep(0.01)


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process, all its threads."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def rss_mb(pid: int | None = None) -> float:
    """Return the resident memory of a process, of this one by default, in 10^6 bytes."""
    return float(psutil.Process(pid or os.getpid()).memory_info().rss) / 1e6
