"""Gains between consecutive blocks: the arithmetic that the monitor and the aggregator share.

The gain of a transition is the norm of the loss gradient at the earlier block's output over that
at the later one's: how much the gradient grew on its way back through the later block.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

AMPLIFYING_GAIN: Final = 2.0
"""A gain above this amplifies (the source documents' heuristic)."""

DAMPING_GAIN: Final = 0.5
"""A gain below this damps (the source documents' heuristic)."""

GAIN_EPS: Final = 1e-30
"""A later norm below this has vanished: the gain over it is Inf."""

CATEGORIES: Final = {
    "amplifying": f"gain > {AMPLIFYING_GAIN}",
    "damping": f"gain < {DAMPING_GAIN}",
    "healthy": "in between",
    "vanishing": "gain is inf",
    "missing": "no gain is known",
}
"""The kinds of transition, with what they mean."""

NORM_TYPES: Final = ("l2", "l1", "linf", "mean")


def gains(norms: Sequence[float | None], eps: float = GAIN_EPS) -> list[float | None]:
    """Return the gain of each transition: norm of block i over norm of block i + 1.

    Args:
        norms: Norm at each block's output, input side first; None where there is none. Over a norm
            that is not finite there is no gain.
        eps: Norm of the later block below which the gain is Inf.
    """
    return [_gain(early, late, eps) for early, late in itertools.pairwise(norms)]


def _gain(early: float | None, late: float | None, eps: float) -> float | None:
    if early is None or late is None or not (math.isfinite(early) and math.isfinite(late)):
        return None
    return math.inf if late < eps else early / late


def log_gains(values: Sequence[float | None]) -> list[float | None]:
    """Return the natural logarithm of each gain; -Inf for a gain of zero."""
    return [None if v is None else -math.inf if v == 0.0 else math.log(v) for v in values]


def gain_category(gain: float | None) -> str:
    """Return what kind of transition a gain makes: one of `CATEGORIES`."""
    if gain is None:
        return "missing"
    if math.isinf(gain):
        return "vanishing"
    if gain > AMPLIFYING_GAIN:
        return "amplifying"
    return "damping" if gain < DAMPING_GAIN else "healthy"


def summarize_gains(values: Sequence[float | None]) -> dict[str, float | int | None]:
    """Return statistics over the finite gains, and how many transitions are of which category.

    The counts `num_<category>` add up to the number of transitions. `mean_gain`, `min_gain`,
    `max_gain` are None without a finite gain, `mean_log_gain` without a positive one.
    """
    finite = [value for value in values if value is not None and math.isfinite(value)]
    logs = [math.log(value) for value in finite if value > 0.0]
    counts = Counter(map(gain_category, values))
    return {
        "mean_gain": math.fsum(value / len(finite) for value in finite) if finite else None,
        "min_gain": min(finite, default=None),
        "max_gain": max(finite, default=None),
        "mean_log_gain": math.fsum(logs) / len(logs) if logs else None,
        **{f"num_{category}": counts[category] for category in CATEGORIES},
    }
