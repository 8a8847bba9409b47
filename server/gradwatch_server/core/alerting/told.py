"""Facts that the events of an alert have told so far, and what is far worse than that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwatch_server.core.alerting.alert import Worst
from gradwatch_server.core.alerting.event_limit import EventLimit
from gradwatch_server.core.arrays import BoolArray, FloatArray
from gradwatch_wire.health import Severity

WORSE: Final = 10.0
"""What is this many times what was told before is told again."""


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
