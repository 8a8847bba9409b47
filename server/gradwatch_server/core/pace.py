"""The pace of an attempt: how long its steps have taken, and how long the pauses between them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import numpy as np

GAPS: Final = 512
"""Gaps between steps of which the median is taken, the newest."""

WARM_UP: Final = 5
"""Gaps at the beginning that are no measure: kernels are compiled and caches are filled."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Statistics of the gaps between the steps of an attempt.

    Args:
        count: How many there were.
        median_s: Median of the newest, 0 without any.
        largest_s: The largest while training, after the first few; 0 without any.
        largest_evaluation_s: The largest in which the model was not in training mode.
    """

    count: int = 0
    median_s: float = 0.0
    largest_s: float = 0.0
    largest_evaluation_s: float = 0.0


@dataclass
class Pace:
    """Gaps between the steps of one attempt, as they come."""

    _gaps: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS))
    _count: int = 0
    _largest_s: float = 0.0
    _largest_evaluation_s: float = 0.0

    def __post_init__(self) -> None:
        self._median_s: float | None = None  # of the gaps, once somebody asked

    def add(self, gap_s: float, *, training: bool) -> None:
        """Note a gap, finite and not negative."""
        self._count += 1
        self._gaps.append(gap_s)
        self._median_s = None
        if not training:
            self._largest_evaluation_s = max(self._largest_evaluation_s, gap_s)
        elif self._count > WARM_UP:
            self._largest_s = max(self._largest_s, gap_s)

    def gaps(self) -> Gaps:
        """Return what they come to."""
        if self._median_s is None:
            self._median_s = float(np.median(self._gaps)) if self._gaps else 0.0
        return Gaps(self._count, self._median_s, self._largest_s, self._largest_evaluation_s)


def known_seconds(seconds: float | None) -> float | None:
    """Return a number of seconds that a client gave, None where it can be none."""
    if seconds is None or not math.isfinite(seconds) or not 0.0 <= seconds <= 1e9:
        return None
    return seconds
