"""Loss scales divided out on the host, in float64, as IEEE 754 has it."""

from __future__ import annotations

import math
from collections.abc import Iterable


def unscaled(values: Iterable[float], scale: float) -> list[float]:
    """Return each number divided by the scale; by a scale of zero, what a device would give."""
    if scale == 0.0:
        return [value * math.copysign(math.inf, scale) for value in values]
    return [value / scale for value in values]
