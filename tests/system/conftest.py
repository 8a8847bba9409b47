"""Real processes: an aggregator on free ports, and training jobs of one or more ranks."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

HERE = Path(__file__).parent
COMMAND = Path(sys.executable).with_name("gradwatch")


class Aggregator:
    """A `gradwatch serve` process on ports that stay the same over restarts."""

    def __init__(self, directory: Path, environ: dict[str, str]) -> None:
        self.directory = directory
        self.http = f"127.0.0.1:{free_port()}"
        self.ingest = f"tcp://127.0.0.1:{free_port()}"
        self.environ = environ
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        arguments = ["--http", self.http, "--ingest", self.ingest, "--data", str(self.directory)]
        self.process = subprocess.Popen(
            [COMMAND, "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | self.environ,
            cwd=self.directory.parent,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if re.match(r"\s*data\s", line):
                break
        wait_until(self.answers, "the aggregator answers")

    def answers(self) -> bool:
        try:
            return self.get("/readyz").is_success
        except httpx.TransportError:
            return False

    def send(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it; return its exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(number)
        _, self.errors = self.process.communicate(timeout=20)
        code, self.process = self.process.returncode, None
        return code

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://{self.http}{path}", timeout=10)

    def health(self, run: str) -> dict[str, Any]:
        report: dict[str, Any] = self.get(f"/runs/{run}/health").raise_for_status().json()
        return report


class Job:
    """The worker processes of one training job."""

    def __init__(self, ingest: str, world: int, worker: str, arguments: list[str]) -> None:
        port = str(free_port())
        self.ranks = [
            subprocess.Popen(
                [sys.executable, HERE / worker, *arguments],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=os.environ
                | {"GRADWATCH_ENDPOINT": ingest, "OMP_NUM_THREADS": "1"}
                | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                | {"RANK": str(rank), "WORLD_SIZE": str(world)},
            )
            for rank in range(world)
        ]

    def wait_for_training(self) -> None:
        """Return once every rank is in its training loop."""
        for rank in self.ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "training\n"

    def wait(self) -> list[str]:
        """Return what each rank printed; fail if one failed."""
        output = [rank.communicate(timeout=90)[0] for rank in self.ranks]
        for rank, text in zip(self.ranks, output, strict=True):
            assert rank.returncode == 0, text
        return output

    def kill(self) -> None:
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.05)


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def environ() -> dict[str, str]:
    """Settings of the aggregator; a test may change them before it starts."""
    return {}


@pytest.fixture
def aggregator(tmp_path: Path, environ: dict[str, str]) -> Iterator[Aggregator]:
    made = Aggregator(tmp_path / "data", environ)
    yield made
    made.stop(signal.SIGKILL)


@pytest.fixture
def train(aggregator: Aggregator) -> Iterator[Callable[..., Job]]:
    """Start a training job: `train(world, "--run", "name", ..., worker="worker.py")`."""
    jobs: list[Job] = []

    def start(world: int, *arguments: str, worker: str = "worker.py") -> Job:
        jobs.append(Job(aggregator.ingest, world, worker, list(arguments)))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
