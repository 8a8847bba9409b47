"""The aggregator's clock: the wall clock as it was at the start, and steady from then on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# Where there is one, a clock that also counts the time a laptop sleeps.
_STEADY: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _steady_ns() -> int:
    return time.clock_gettime_ns(_STEADY)


class Clock:
    """When somebody sets the system's clock, ranks must not look lost and frames not late."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        steady_ns: Callable[[], int] = _steady_ns,
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

    def catch_up(self, past_ns: int) -> None:
        """Go on from *past_ns* where the system's clock was set back since then.

        Otherwise everything would wait until the latest time that is in the log.
        """
        self._offset_ns += max(0, past_ns - self.now_ns())
