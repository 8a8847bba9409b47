"""Time that passes only when the simulation says so."""

from __future__ import annotations

from typing import Final

import gradwatch_server.clock
from simulation.scenario import SECOND_NS

START_NS: Final = 1_763_000_000 * SECOND_NS


class Clock:
    """Steady time since the start, and the wall clock, which anybody may set."""

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
        self.steady_ns += int(seconds * SECOND_NS)

    def set_by(self, seconds: float) -> None:
        self._wall_ns += int(seconds * SECOND_NS)

    def boot(self) -> gradwatch_server.clock.Clock:
        """Return the aggregator's clock, as it begins when a process starts."""
        return gradwatch_server.clock.Clock(lambda: self.wall_ns, self._read)

    def _read(self) -> int:
        self.steady_ns += 1_000  # as with a real one, no two readings are the same
        return self.steady_ns
