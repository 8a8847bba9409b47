"""Processes for the benchmarks: an aggregator of one's own, and workers that answer over a pipe.

Each is ended by its own pid, whatever happens, and everything listens on loopback only.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

import httpx
import psutil

START_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 10.0
ANSWER_TIMEOUT_S: Final = 600.0

Pipe: TypeAlias = "Connection[Any, Any]"

_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Aggregator:
    """A running `gradwatch serve`.

    Args:
        process: The process.
        http: URL of its HTTP API.
        ingest: Endpoint that clients push to.
        data: Its data directory.
        started_s: From the start of the process to the first answer of `/readyz`.
    """

    process: psutil.Popen
    http: str
    ingest: str
    data: Path
    started_s: float

    def get(self, path: str) -> Any:
        """Return what the HTTP API answers, None if there is no such thing yet."""
        response = httpx.get(self.http + path, timeout=30.0)
        if response.status_code == httpx.codes.NOT_FOUND:
            return None
        return response.raise_for_status().json()


@contextlib.contextmanager
def aggregator(config: str = "") -> Iterator[Aggregator]:
    """Run an aggregator on free loopback ports, in a directory that is removed with it."""
    command = Path(sys.executable).with_name("gradwatch")
    with tempfile.TemporaryDirectory(prefix="gradwatch-bench-") as name:
        scratch = Path(name)
        (scratch / "gradwatch.toml").write_text(config)
        arguments = [
            *(str(command), "serve", "--http", "127.0.0.1:0", "--ingest", "tcp://127.0.0.1:0"),
            *("--data", str(scratch / "data"), "--config", str(scratch / "gradwatch.toml")),
        ]
        with (scratch / "stderr").open("w+") as errors:
            began = time.perf_counter()
            process = psutil.Popen(arguments, stdout=subprocess.PIPE, stderr=errors, text=True)
            try:
                addresses = _announced(process)
                if "ingest" not in addresses or not _is_ready(addresses["http"]):
                    errors.seek(0)
                    sys.exit(f"bench: the aggregator does not start: {errors.read()[-2000:]}")
                started_s = time.perf_counter() - began
                http, ingest = addresses["http"], addresses["ingest"]
                yield Aggregator(process, http, ingest, scratch / "data", started_s)
            finally:
                _end(process)


def _announced(process: psutil.Popen) -> dict[str, str]:
    """Read the lines like `  http    http://...` that `gradwatch serve` prints once it is bound."""
    output: IO[str] = process.stdout
    watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
    watchdog.start()
    found: dict[str, str] = {}
    for line in output:
        name, _, value = line.strip().partition(" ")
        found[name] = value.strip()
        if name == "data":
            break
    watchdog.cancel()
    return found


def _is_ready(url: str) -> bool:
    def answers() -> bool:
        try:
            return httpx.get(f"{url}/readyz").is_success
        except httpx.HTTPError:
            return False

    wait_until(answers, START_TIMEOUT_S, "the aggregator's answer")
    return True


def _end(process: psutil.Popen) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)  # a stopped process would not hear the other
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except psutil.TimeoutExpired:
            process.kill()
            process.wait()
    process.stdout.close()


@dataclass(frozen=True, slots=True)
class Worker:
    """A process that runs one function of ours."""

    pid: int
    pipe: Pipe

    def tell(self, message: Any) -> None:
        """Send a message to the worker."""
        self.pipe.send(message)

    def hear(self) -> Any:
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
