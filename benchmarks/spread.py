"""Medians, ranges and quantiles, with nothing but the standard library."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest of the values that at least *share* of them do not exceed."""
    ordered = sorted(values)
    rank = -int(-share * len(ordered) // 1)  # rounded up
    return ordered[min(max(rank, 1), len(ordered)) - 1]


def with_range(values: Sequence[float], form: str) -> str:
    """Return the median, and the range where there are several."""
    middle = format(statistics.median(values), form)
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):{form}}..{max(values):{form}})"


def ratios(own: Sequence[float], base: Sequence[float]) -> list[float]:
    return [each / other for each, other in zip(own, base, strict=True)]
