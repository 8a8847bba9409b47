"""Rate limit of the further events of an alert that fires."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

INTERVAL_NS: Final = 60_000_000_000
"""In the long run an alert tells of itself at most this often."""

BURST: Final = 3
"""So many events may follow each other at once."""


@dataclass(slots=True)
class EventLimit:
    """At most `BURST` events at once, and one per `INTERVAL_NS` in the long run.

    It goes by the times in the log, as all of the core does. The generic cell rate algorithm
    (ITU-T I.371): one number says how far ahead of the rate the events are.

    Args:
        ahead_ns: Time at which all that was told would be due at the rate, nanoseconds since the
            epoch.
    """

    ahead_ns: int = 0

    def allows(self, now_ns: int) -> bool:
        """Tell whether an event is allowed."""
        return self.ahead_ns - now_ns <= (BURST - 1) * INTERVAL_NS

    def acquire(self, now_ns: int) -> bool:
        """Tell whether an event is allowed, and count it if it is."""
        if not self.allows(now_ns):
            return False
        self.ahead_ns = max(self.ahead_ns, now_ns) + INTERVAL_NS
        return True
