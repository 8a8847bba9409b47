"""Gradient norms of layers below a limit, and what rules about norms share."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np
from pydantic import Field, model_validator

from gradwatch_server.core.alerting.alert import comparison, place
from gradwatch_server.core.alerting.attribution import ranks_of
from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import (
    FOR_STEPS,
    HealthShare,
    Limit,
    Steps,
)
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.frames.frame import Frame, RankPart
from gradwatch_wire.columns import L2
from gradwatch_wire.health import VANISHING_THRESHOLD


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
    formula = "a layer has `l2 < limit` on any rank, and is held while `l2 < clear`."
    tuning = """
        Where a part always has a tiny gradient, such as what a fine-tuning hardly moves, limit the
        rule with `layers` or `groups`. Raise `limit` to hear of slow starvation earlier.
    """
    source = """
        The limit of 1e-7 is that of the documents that gradwatch was made from, and of SageMaker
        Debugger's `VanishingGradient`, which takes the mean magnitude.
    """
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
        return ranks_with(frame, index, lambda part: part.values[L2] < self.limit)


def ranks_with(
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
