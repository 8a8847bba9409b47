"""Gradient norms of layers beyond a limit: exploding and vanishing."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

import numpy as np
from pydantic import Field, model_validator

from gradwatch_server.core.alerting.alert import comparison, place
from gradwatch_server.core.alerting.attribution import ranks_of
from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import (
    FOR_STEPS,
    SEVERITY,
    HealthShare,
    Limit,
    Steps,
)
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.frames.frame import Frame, RankPart
from gradwatch_wire.columns import L2
from gradwatch_wire.health import EXPLODING_THRESHOLD, VANISHING_THRESHOLD, Severity

STANDS_OUT: Final = 10.0
"""A rank's own gradient is the origin if it is this many times the median of all ranks'."""


class NormRule(LayerRule):
    """A layer's L2 norm, where it is finite, against a limit."""

    limit: Limit

    def seen(self, frame: Frame) -> BoolArray:
        """Return the layers with a finite norm, (layers,): an Inf is no large one."""
        return frame.present & ~frame.nonfinite

    def threshold(self) -> float:
        """Return the limit."""
        return self.limit

    def describe(self, origin: Origin) -> str:
        """Return what is wrong in a few words."""
        return f"gradient of {place(origin)} has L2 norm {comparison(origin)}"


class ExplodingRule(NormRule):
    """A layer's gradient L2 norm above `limit`.

    Its origin is the largest layer, and the rank whose own gradient (`attach(local=True)`) breaks
    the limit, or is 10 times the median of all ranks'; without these numbers `ranks` are those that
    show it.
    """

    name = "exploding"
    health = HealthShare.EXPLODING

    limit: Limit = Field(EXPLODING_THRESHOLD, description="L2 norm above which a layer explodes.")
    clear: Limit = Field(
        EXPLODING_THRESHOLD / 2, description="L2 norm at or below which a layer is calm again."
    )
    for_steps: Steps = Field(2, description=FOR_STEPS)
    severity: Severity = Field(Severity.CRITICAL, description=SEVERITY)

    @model_validator(mode="after")
    def _hysteresis(self) -> ExplodingRule:
        if self.clear > self.limit:
            msg = f"clear ({self.clear:g}) must not be above limit ({self.limit:g})"
            raise ValueError(msg)
        return self

    def raised(self, observation: Frame, context: Context) -> BoolArray:
        """Return the layers above the limit on any rank, (layers,)."""
        return (observation.l2_max > self.limit) & ~observation.nonfinite  # NaN where absent

    def held(self, frame: Frame, raised: BoolArray) -> BoolArray:
        """Return the layers that are not calm yet, (layers,)."""
        return self.seen(frame) & (frame.l2_max > self.clear)

    def find_ranks(self, frame: Frame, index: int) -> tuple[int, ...]:
        """Return the ranks whose own gradient explodes, else those that show it."""
        return _local_explosion(frame, index, self.limit) or _ranks_with(
            frame, index, lambda part: part.peak > self.limit
        )


class VanishingRule(NormRule):
    """A layer's gradient L2 norm below `limit`.

    A layer that explodes on another rank counts as exploding. Some parameters always have a
    gradient of zero, for mathematical reasons: the bias of an attention's keys is one. Leave them
    out with `attach(exclude=...)`.

    Its origin is the smallest layer.
    """

    name = "vanishing"
    yields_to = ("exploding",)
    health = HealthShare.VANISHING
    further_counts: ClassVar = {
        "dead": lambda frame: int(np.count_nonzero(frame.l2_max == 0.0)),
    }

    limit: Limit = Field(VANISHING_THRESHOLD, description="L2 norm below which a layer vanishes.")
    clear: Limit = Field(
        2 * VANISHING_THRESHOLD, description="L2 norm at or above which a layer is alive again."
    )
    for_steps: Steps = Field(3, description=FOR_STEPS)

    @model_validator(mode="after")
    def _hysteresis(self) -> VanishingRule:
        if self.clear < self.limit:
            msg = f"clear ({self.clear:g}) must not be below limit ({self.limit:g})"
            raise ValueError(msg)
        return self

    def raised(self, observation: Frame, context: Context) -> BoolArray:
        """Return the layers below the limit on any rank, (layers,)."""
        return (observation.l2_min < self.limit) & ~observation.nonfinite  # NaN where absent

    def held(self, frame: Frame, raised: BoolArray) -> BoolArray:
        """Return the layers that are not alive yet, (layers,)."""
        return self.seen(frame) & (frame.l2_min < self.clear)

    def excess(self, frame: Frame) -> FloatArray:
        """Return by what factor each layer is below the limit, (layers,), Inf for a norm of 0."""
        with np.errstate(divide="ignore", over="ignore"):
            return np.asarray(self.limit / frame.l2_min)

    @classmethod
    def values(cls, frame: Frame) -> FloatArray:
        """Return the smallest norm over ranks, (layers,)."""
        return frame.l2_min

    @classmethod
    def worst_first(cls, frame: Frame, flagged: BoolArray) -> IndexArray:
        """Return the flagged layers, the smallest first."""
        indices = np.flatnonzero(flagged)
        return indices[np.argsort(frame.l2_min[indices], kind="stable")]

    def find_ranks(self, frame: Frame, index: int) -> tuple[int, ...]:
        """Return the ranks that show it."""
        return _ranks_with(frame, index, lambda part: part.values[L2] < self.limit)


def _ranks_with(
    frame: Frame, index: int, is_broken: Callable[[RankPart], BoolArray]
) -> tuple[int, ...]:
    """Return the ranks whose gradient of a layer breaks the limit.

    A shard's values come from all ranks, and say nothing of the one that holds it.
    """
    found = []
    for part in frame.parts:
        own = part.layout.index == index
        if part.reduced and part.layout.is_sharded[own].any():
            return ()
        if is_broken(part)[own].any():
            found.append(part)
    return ranks_of(found)


def _local_explosion(frame: Frame, index: int, limit: float) -> tuple[int, ...]:
    """Return the ranks whose own gradient breaks the limit, else the one that stands out."""
    local: dict[int, float] = {}
    for part in frame.parts:
        if (norms := part.local_l2) is not None:
            own = norms[part.layout.index == index]
            # Negative: not known there.
            local.update((part.rank, norm) for norm in own.tolist() if not norm < 0.0)
    breaking = tuple(sorted(rank for rank, norm in local.items() if norm > limit))
    if breaking or len(local) < len(ranks_of(frame.parts)) or frame.coverage < 1.0:
        return breaking
    largest = max(local, key=lambda rank: local[rank])
    median = float(np.median(list(local.values())))
    return (largest,) if local[largest] > STANDS_OUT * median else ()
