"""Time that passes only when the simulation says so."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final
from unittest import mock

from gradwatch_server import clock
from simulation.scenario import SECOND_NS

START_NS: Final = 1_763_000_000 * SECOND_NS


class Clock:
    """Steady time since the start, and the wall clock, which anybody may set.

    The aggregator's own clock, `shell.clock`, is made of both.
    """

    def __init__(self) -> None:
        self.steady_ns = 0
        self._wall_ns = START_NS

    @property
    def now_s(self) -> float:
        """Steady seconds since the start, what the workers' timeouts go by."""
        return self.steady_ns / SECOND_NS

    @property
    def wall_ns(self) -> int:
        """Nanoseconds since the epoch, as somebody may have set them."""
        return self.steady_ns + self._wall_ns

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.steady_ns += int(seconds * SECOND_NS)

    def set_by(self, seconds: float) -> None:
        """Set the wall clock forward or back."""
        self._wall_ns += int(seconds * SECOND_NS)

    def boot(self) -> None:
        """Let the aggregator's clock begin, as it does when a process starts."""
        clock._clock._offset_ns = self._wall_ns

    # What `shell.clock` asks of the module `time`.

    def time_ns(self) -> int:
        """Return the wall clock."""
        return self.wall_ns

    def clock_gettime_ns(self, _clock_id: int) -> int:
        """Return the steady clock."""
        return self.steady_ns

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Be the aggregator's clock for a while."""
        offset_ns = clock._clock._offset_ns
        try:
            with mock.patch.object(clock, "time", self):
                yield
        finally:
            clock._clock._offset_ns = offset_ns
