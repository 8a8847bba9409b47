"""How many partitions a node took over, and how long that took."""

from __future__ import annotations

import threading


class Takeovers:
    """Counters since the start, for any thread."""

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self._lock = threading.Lock()

    def note(self, took_s: float) -> None:
        """Note one more."""
        with self._lock:
            self.count += 1
            self.total_s += took_s
