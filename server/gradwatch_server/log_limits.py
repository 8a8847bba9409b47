"""Limits of the aggregator's own log: lines that peers cause are told once, and counted.

What peers cause is told by the loggers in `GUARDED`. Lines are of one kind if they have the same
text but for what is filled in; a record says with `extra={"peer": ...}` who caused it, and may name
its kind there.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from gradwatch_server.budgets import BudgetUse

logger = logging.getLogger(__name__)

GUARDED: Final = ("asyncio", "uvicorn.error", "gradwatch_server.api.routes.streams")
"""Loggers whose lines peers can cause."""

WINDOW_S: Final = 60.0
"""Time over which lines are counted."""

LINES_PER_CAUSE: Final = 1
"""Lines of one kind about one caller in that time."""

MAX_TOLD: Final = 10
"""Kinds and peers that the line about omitted lines names."""

Cause = tuple[str, str]
"""The kind of a line and the peer that caused it."""


class LogLimits(logging.Filter):
    """Lets so many lines of each kind and peer pass, and so many in all. For any thread.

    Args:
        use: Budget of log lines, and the counter of omitted ones.
    """

    def __init__(self, use: BudgetUse, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._use = use
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._began_s = clock_s()
        self._passed: Counter[Cause] = Counter()
        self._held: Counter[Cause] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether a line may pass; count it if not."""
        self.report()
        cause = (_kind(record), str(getattr(record, "peer", "")))
        limits = self._use.limits
        with self._lock:
            total = self._passed.total()
            full = total >= limits.log_lines_per_min
            if not full and self._passed[cause] < LINES_PER_CAUSE:
                self._passed[cause] += 1
                self._use["log_lines_per_min"].used = total + 1
                return True
            # Peers without number must not fill this either.
            is_known = cause in self._held or len(self._held) < limits.log_lines_per_min
            self._held[cause if is_known else ("others", "")] += 1
            self._use["log_lines_per_min"].num_refused += 1
            return False

    def report(self) -> None:
        """Say what was left out, once a minute."""
        with self._lock:
            if self._clock_s() - self._began_s < WINDOW_S:
                return
            self._began_s = self._clock_s()
            held, self._held = self._held, Counter()
            self._passed.clear()
            self._use["log_lines_per_min"].used = 0
        for (kind, peer), count in held.most_common(MAX_TOLD):
            whose = f" from {peer}" if peer else ""
            logger.warning("left out in the last minute: %d more%s: %s", count, whose, kind)
        rest = held.total() - sum(count for _, count in held.most_common(MAX_TOLD))
        if rest:
            logger.warning("left out in the last minute: %d more of other kinds and peers", rest)

    @contextlib.contextmanager
    def guarding(self) -> Iterator[None]:
        """Look at every line of the loggers in `GUARDED`."""
        guarded = [logging.getLogger(name) for name in GUARDED]
        for each in guarded:
            each.addFilter(self)
        try:
            yield
        finally:
            for each in guarded:
                each.removeFilter(self)


def _kind(record: logging.LogRecord) -> str:
    """Return what lines of one kind have in common: their text without what is filled in."""
    text = str(getattr(record, "kind", record.msg)).strip()
    return ascii(text.partition("\n")[0][:120])[1:-1]
