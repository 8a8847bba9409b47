"""The aggregator's clock: the wall clock as it was at the start, and steady from then on."""

from __future__ import annotations

import time
from typing import Final

# Where there is one, a clock that also counts the time a laptop sleeps.
_STEADY: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """When somebody sets the system's clock, ranks must not look lost and frames not late."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.clock_gettime_ns(_STEADY)

    def now_ns(self) -> int:
        """Return nanoseconds since the epoch, never less than before."""
        return self._offset_ns + time.clock_gettime_ns(_STEADY)

    def catch_up(self, past_ns: int) -> None:
        """Go on from *past_ns* where the system's clock was set back since then.

        What the log says was an hour from now would otherwise wait for it.
        """
        self._offset_ns += max(0, past_ns - self.now_ns())


_clock: Final = Clock()
now_ns: Final = _clock.now_ns
catch_up: Final = _clock.catch_up
