"""The vocabulary of health: one place for the words and the formula that both sides use."""

from __future__ import annotations

import math
import re
from enum import StrEnum
from typing import Final

VANISHING_THRESHOLD: Final = 1e-7
"""A layer's gradient L2 norm below this is vanishing (the source documents' default)."""

EXPLODING_THRESHOLD: Final = 100.0
"""A layer's gradient L2 norm above this is exploding (the source documents' default)."""

VANISHING_HEALTH_PENALTY: Final = 0.5
EXPLODING_HEALTH_PENALTY: Final = 0.8

SENTINEL_FACTOR: Final = 10.0
"""Norm of all gradients, in usual ones, that a client's sentinel finds alarming."""


def health_score(
    vanishing_share: float,
    exploding_share: float,
    *,
    has_nonfinite: bool = False,
    vanishing_penalty: float = VANISHING_HEALTH_PENALTY,
    exploding_penalty: float = EXPLODING_HEALTH_PENALTY,
) -> float:
    """Return clamp(1 - 0.5 v - 0.8 e, 0, 1) for the shares of vanishing and exploding layers.

    The formula is the source documents'. 0 where any gradient is non-finite: one NaN layer of 148
    is not 99 % healthy.
    """
    if has_nonfinite:
        return 0.0
    score = 1.0 - vanishing_penalty * vanishing_share - exploding_penalty * exploding_share
    return min(1.0, max(0.0, score))


def normalized_ratio(seed_norm: float, seed_numel: int, host_norm: float, host_numel: int) -> float:
    """Return (seed_norm / √seed_numel) / (host_norm / √host_numel), the ratio of two groups' RMS.

    0.0 when either side has no norm or no parameters, as the source documents define it. NaN where
    a norm is NaN or both are Inf; Inf where the ratio is beyond the range of a float.
    """
    if seed_norm == 0.0 or host_norm == 0.0 or seed_numel == 0 or host_numel == 0:
        return 0.0
    # Mantissas and exponents apart: neither a quotient nor a root leaves the range on the way.
    seed, seed_exponent = math.frexp(seed_norm)
    host, host_exponent = math.frexp(host_norm)
    ratio = seed / host * math.sqrt(host_numel / seed_numel)
    try:
        return math.ldexp(ratio, seed_exponent - host_exponent)
    except OverflowError:
        return math.inf


def nonfinite_kind(value: float) -> str | None:
    """Return `nan`, `inf`, or None for a finite value."""
    if math.isfinite(value):
        return None
    return "nan" if math.isnan(value) else "inf"


class Phase(StrEnum):
    """Phase of the life of a run; `failed` is an end by an exception, `lost` one without BYE."""

    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"
    LOST = "lost"


class Status(StrEnum):
    """Status of a run, also after its end: the worst that holds. The worst is the last."""

    UNKNOWN = "unknown"
    HEALTHY = "healthy"
    DEGRADED = "degraded"
    INCOMPLETE = "incomplete"
    STALLED = "stalled"
    CRITICAL = "critical"

    def is_at_least(self, other: Status) -> bool:
        """Tell whether this one is *other* or worse."""
        order = list(Status)
        return order.index(self) >= order.index(other)


class RankState(StrEnum):
    """State of a rank: a sign of life lately, none lately, ended by BYE, failed, or lost.

    One that failed said in its BYE that it ended with an exception; one that is lost said none.
    """

    ALIVE = "alive"
    SILENT = "silent"
    ENDED = "ended"
    FAILED = "failed"
    LOST = "lost"


class AlertState(StrEnum):
    """State of an alert in its life."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class Severity(StrEnum):
    """Severity of an alert."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


RUN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
RUN_NAME_RULE: Final = "1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit"


def is_run_name(name: str) -> bool:
    """Tell whether *name* can stand in a URL, a file name and a terminal as it is."""
    return RUN_NAME.fullmatch(name) is not None
