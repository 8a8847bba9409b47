"""A `gradwatch serve` process that can be killed and started again on the same ports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import httpx

from tests.support.forking import SERVER, ForkedProcess
from tests.support.peer import Peer
from tests.support.ports import ReservedPort
from tests.support.waiting import PATIENCE_S, wait_until

GRADWATCH: Final = Path(sys.executable).with_name("gradwatch")
"""The console command of the environment that runs the tests."""


class Aggregator:
    """One data directory and two ports, served by one process after another.

    Args:
        directory: The data directory; the log of the process, `stderr.txt`, is put beside it.
        arguments: Further arguments of `gradwatch serve`.
        environ: Environment variables on top of those of the tests; may be changed between starts.
    """

    files: tuple[int, int] | None = None
    """Files it may have open, the limit in force and the highest; None for as many as we."""

    is_forked = True
    """Whether the process is a fork of one that has imported everything."""

    def __init__(self, directory: Path, *arguments: str, **environ: str) -> None:
        self.directory = directory
        self.environ = environ
        self.headers: dict[str, str] = {}
        """Sent with what is asked over HTTP: a token, for one."""
        self._arguments = arguments
        self._ports = ReservedPort(), ReservedPort()
        http, ingest = (port.number for port in self._ports)
        self.url = f"http://127.0.0.1:{http}"
        self.ingest = f"tcp://127.0.0.1:{ingest}"
        self.announced: dict[str, str] = {}  # what it printed at its start, by name
        # A file, for nobody reads a pipe while the process runs, and a full one would stop it.
        self._errors = directory.parent / "stderr.txt"
        self._process: subprocess.Popen[str] | None = None

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "the aggregator is not started"
        return self._process

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped since."""
        return self._process is not None

    @property
    def errors(self) -> str:
        return self._errors.read_text("utf-8")

    def start(self) -> None:
        """Start a process and wait until it answers."""
        addresses = ("--http", self.url.partition("//")[2], "--ingest", self.ingest)
        data = ("--data", str(self.directory))
        self.directory.parent.mkdir(exist_ok=True)
        serve = [str(GRADWATCH), "serve", *addresses, *data, *self._arguments]
        environ = os.environ | self.environ
        with self._errors.open("a") as errors:
            if self.is_forked and self.files is None:
                self._process = ForkedProcess(
                    serve,
                    SERVER,
                    environ=environ,
                    directory=self.directory.parent,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                )
            else:
                self._process = subprocess.Popen(
                    [*self._limits(), *serve],
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=environ,
                    cwd=self.directory.parent,
                )
        self.announced = self._announced()
        self.url = self.announced["http"]
        if self.announced["ingest"].startswith("tcp://"):  # a node that waits has it closed
            self.ingest = self.announced["ingest"]
            wait_until(self.answers, "the aggregator answers")

    def _limits(self) -> list[str]:
        """Return a command that runs the next one with these limits."""
        if self.files is None:
            return []
        soft, hard = self.files
        return ["sh", "-c", f'ulimit -S -n {soft}; ulimit -H -n {hard}; exec "$0" "$@"']

    def _announced(self) -> dict[str, str]:
        """Read the lines like `  http    http://...` that it prints once its ports are bound."""
        watchdog = threading.Timer(PATIENCE_S, self.process.kill)
        watchdog.start()
        announced: dict[str, str] = {}
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if match := re.fullmatch(r" +(\w+) +(.*)\n", line):
                announced[match[1]] = match[2]
            if "data" in announced:
                break
        watchdog.cancel()
        assert "data" in announced, self.errors
        return announced

    def answers(self) -> bool:
        """Tell whether it is ready; whose certificate it shows does not matter here."""
        try:
            url = f"{self.url}/readyz"
            return httpx.get(url, timeout=PATIENCE_S, trust_env=False, verify=False).is_success
        except httpx.TransportError:
            assert self.process.poll() is None, self.errors
            return False

    def peer(self, **settings: Any) -> Peer:
        return Peer(self.ingest, **settings)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End the process, and return its exit code; nothing happens if none was started."""
        if self._process is None:
            return 0
        for each in (number, signal.SIGCONT):  # a stopped process acts on neither until it goes on
            self._process.send_signal(each)
        self._process.communicate(timeout=PATIENCE_S)
        code, self._process = self._process.returncode, None
        return code

    def close(self) -> None:
        """Kill what runs and let the ports go."""
        self.stop(signal.SIGKILL)
        for port in self._ports:
            port.close()

    def get(self, path: str, **settings: Any) -> httpx.Response:
        """Ask over HTTP."""
        headers = self.headers | settings.pop("headers", {})
        url = self.url + path
        return httpx.get(url, headers=headers, timeout=PATIENCE_S, trust_env=False, **settings)

    def json(self, path: str, **settings: Any) -> Any:
        """Ask over HTTP for something that must be there."""
        return self.get(path, **settings).raise_for_status().json()

    def newest_event(self) -> int:
        """Return the cursor of the newest alert event."""
        cursor = 0
        while page := self.json("/alerts", params={"after": cursor, "limit": 1000}):
            cursor = page[-1]["cursor"]
        return cursor

    def health(self, run: str) -> dict[str, Any]:
        """Return the health of a run, as last published: acknowledged records may not be in it."""
        report: dict[str, Any] = self.json(f"/runs/{run}/health")
        return report

    def health_of_ended(self, run: str) -> dict[str, Any]:
        """Return the health of a run once all its ranks' last records are in it."""

        def ended() -> dict[str, Any] | None:
            answer = self.get(f"/runs/{run}/health")
            report: dict[str, Any] = answer.json()
            ranks = report.get("ranks", [])
            is_over = len(ranks) == report.get("world")
            return (
                report
                if is_over and all(r["state"] in ("ended", "failed") for r in ranks)
                else None
            )

        report = wait_until(ended, f"all ranks of {run} have ended")
        assert report is not None
        return report

    def reaches(self, run: str, step: int) -> None:
        """Wait until a run's last closed frame is of this step or a later one."""

        def is_there() -> bool:
            answer = self.get(f"/runs/{run}/health")
            last = answer.json().get("step")
            return last is not None and int(last) >= step

        wait_until(is_there, f"step {step} of {run}")

    def shows(self, peer: Peer) -> None:
        """Wait until everything that a peer sent and got acknowledged is published."""
        path, rank = f"/runs/{peer.greeting.run}/health", peer.greeting.rank

        def is_shown() -> bool:
            answer = self.get(path)
            if not answer.is_success:
                return False
            ranks = {each["rank"]: each for each in answer.json()["ranks"]}
            return rank in ranks and ranks[rank]["stored"] + ranks[rank]["lost"] >= peer.seq

        wait_until(is_shown, f"{peer.seq} records of rank {rank} in {path}")


Serve: TypeAlias = Callable[..., Aggregator]
"""Type of the fixture `serve`: `serve("--config", ..., NAME="...")`."""
