"""Facts that the events of an alert have told so far, and what is far worse than that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwatch_server.core.alerting.alert import Worst
from gradwatch_server.core.arrays import BoolArray, FloatArray
from gradwatch_wire.health import Severity

WORSE: Final = 10.0
"""What is this many times what was told before is told again."""

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


@dataclass(slots=True)
class Told:
    """Facts that the events of an alert have told.

    Args:
        layers: (layers,) which.
        excess: The largest excess, as `Evaluation.excess` or the origin's value.
        severity: How much it matters.
        kind: Kind of the origin.
        loudly: Whether any event was told: of one that never was, nobody is told the end.
        limit: How often it may be told.
    """

    layers: BoolArray
    excess: float
    severity: Severity
    kind: str | None = None
    loudly: bool = False
    limit: EventLimit = field(default_factory=EventLimit)


@dataclass(slots=True)
class Peak:
    """Something far worse than what was told, not told yet.

    Args:
        excess: How far it is.
        worst: Where it is.
    """

    excess: float
    worst: Worst


def largest_of(excess: FloatArray | None, flagged: BoolArray) -> float | None:
    """Return the largest excess of the flagged layers, None if there is none that is a number."""
    if excess is None:
        return None
    found = excess[flagged]
    found = found[~np.isnan(found)]
    return float(found.max()) if len(found) else None
