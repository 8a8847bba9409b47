"""An aggregator that can be killed, stopped and started again on the same ports and directory."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from benchmarks.harness import Aggregator, rss_mb


class Outages(Aggregator):
    """One `gradwatch serve` after the other, over one data directory."""

    def kill(self) -> None:
        """End it at once, as a crash does."""
        self.stop(signal.SIGKILL)

    def pause(self, seconds: float) -> None:
        """Stop it for a while."""
        self.send(signal.SIGSTOP)
        time.sleep(seconds)
        self.send(signal.SIGCONT)

    def rss_mb(self) -> float:
        """Return its resident memory."""
        return rss_mb(self.process.pid)

    def records(self, run: str) -> dict[str, Any]:
        """Return the run's records as `/health` counts them, nothing while it is not known."""
        try:
            report = self.find(f"/runs/{run}/health")
        except httpx.HTTPError:
            return {}
        found: dict[str, Any] = report["records"] if report else {}
        return found


@contextlib.contextmanager
def outages() -> Iterator[Outages]:
    """Yield an aggregator that is not started yet."""
    with tempfile.TemporaryDirectory(prefix="gradwatch-bench-") as name:
        made = Outages(Path(name) / "data")
        try:
            yield made
        finally:
            made.close()
