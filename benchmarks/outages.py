"""An aggregator that can be killed, stopped and started again on the same ports and directory."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from benchmarks.harness import rss_mb, wait_until

START_TIMEOUT_S: Final = 60.0


class Outages:
    """One `gradwatch serve` after the other, over one data directory."""

    def __init__(self, scratch: Path) -> None:
        self.data = scratch / "data"
        self.http = f"http://127.0.0.1:{_free_port()}"
        self.ingest = f"tcp://127.0.0.1:{_free_port()}"
        self._errors = (scratch / "stderr").open("a")
        self._process: psutil.Popen | None = None

    def start(self) -> float:
        """Start it; return the seconds until `/readyz` was answered."""
        command = Path(sys.executable).with_name("gradwatch")
        began = time.perf_counter()
        self._process = psutil.Popen(
            [
                *(str(command), "serve", "--http", self.http.removeprefix("http://")),
                *("--ingest", self.ingest, "--data", str(self.data)),
            ],
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )
        wait_until(self.is_ready, START_TIMEOUT_S, "the aggregator")
        return time.perf_counter() - began

    def is_ready(self) -> bool:
        """Whether it takes records in."""
        try:
            return httpx.get(f"{self.http}/readyz", timeout=5.0).is_success
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self, seconds: float) -> None:
        """Stop it for a while."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self._process.send_signal(signal.SIGCONT)

    def rss_mb(self) -> float:
        """Return its resident memory."""
        assert self._process is not None
        return rss_mb(self._process.pid)

    def records(self, run: str) -> dict[str, Any]:
        """Return the run's records as `/health` counts them, nothing while it is not known."""
        try:
            response = httpx.get(f"{self.http}/runs/{run}/health", timeout=10.0)
        except httpx.HTTPError:
            return {}
        found: dict[str, Any] = response.json()["records"] if response.is_success else {}
        return found

    def close(self) -> None:
        """End it, and with it the directory's last user."""
        self.kill()
        self._errors.close()


@contextlib.contextmanager
def outages() -> Iterator[Outages]:
    """Yield an aggregator that is not started yet."""
    with tempfile.TemporaryDirectory(prefix="gradwatch-bench-") as name:
        made = Outages(Path(name))
        try:
            yield made
        finally:
            made.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
