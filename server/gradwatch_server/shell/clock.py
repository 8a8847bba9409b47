"""The aggregator's clock: the wall clock as it was at the start, and steady from then on."""

from __future__ import annotations

import time
from typing import Final

# Where there is one, a clock that also counts the time a laptop sleeps.
_STEADY: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_OFFSET_NS: Final = time.time_ns() - time.clock_gettime_ns(_STEADY)


def now_ns() -> int:
    """Return nanoseconds since the epoch, never less than before.

    When somebody sets the system's clock, ranks must not look lost and frames not late.
    """
    return _OFFSET_NS + time.clock_gettime_ns(_STEADY)
