"""The aggregator's clock: the wall clock as it was at the start, and steady from then on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# Where there is one, a clock that also counts the time a laptop sleeps.
_STEADY: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _steady_ns() -> int:
    return time.clock_gettime_ns(_STEADY)


MAX_AHEAD_NS: Final = 86_400 * 10**9
"""Largest lead of times over the system's clock. A log that is further ahead had a clock that was
wrong, and must not stamp everything after it for years."""

FIRST_NS: Final = 1_767_225_600 * 10**9
"""2026-01-01, before the first version: a system's clock that is behind it was not set yet, as on
machines without a battery, and then the log is right."""


class Clock:
    """Times that do not jump when somebody sets the system's clock.

    No rank must look lost then, and no frame late.
    """

    def __init__(
        self, wall_ns: Callable[[], int] = time.time_ns, steady_ns: Callable[[], int] = _steady_ns
    ) -> None:
        """Begin at the wall clock's time, which is asked only now.

        Args:
            wall_ns: Gives nanoseconds since the epoch.
            steady_ns: Gives nanoseconds since any moment, and never jumps.
        """
        self._steady_ns = steady_ns
        self._offset_ns = wall_ns() - steady_ns()

    def now_ns(self) -> int:
        """Return nanoseconds since the epoch, never less than before."""
        return self._offset_ns + self._steady_ns()

    def catch_up(self, past_ns: int) -> bool:
        """Go on from *past_ns* where the system's clock was set back since then.

        Otherwise everything would wait until the latest time that is in the log.

        Returns:
            False if that is more than `MAX_AHEAD_NS` ahead of a clock that was set: it stays then.
        """
        now_ns = self.now_ns()
        if now_ns >= FIRST_NS and past_ns - now_ns > MAX_AHEAD_NS:
            return False
        self._offset_ns += max(0, past_ns - now_ns)
        return True
