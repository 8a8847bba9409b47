"""Findings of one frame: the input of rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradwatch_server.core.arrays import BoolArray, FloatArray
from gradwatch_server.core.judge.deviations import Deviation, DeviationKind

UP: Final = (DeviationKind.SPIKE, DeviationKind.GROWTH, DeviationKind.TOTAL)
DOWN: Final = (DeviationKind.SHRINK, DeviationKind.COLLAPSE)


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of one frame.

    Args:
        norms: (modules,) L2 norms, NaN where absent or non-finite.
        deviations: Flags of the detector, the largest part first.
        rising: (modules,) beyond their record, in a deviation that is paged.
        falling: (modules,) the same for falls.
        high: (modules,) still above the level that they had before such a rise.
        low: (modules,) still below their level before such a fall.
        is_calm: Whether there is nothing in the four before this.
        is_complete: Whether the frame has the layers that the one before had, and lacks none.
        is_loss_high: Whether the loss is still above its level before a paged rise.
        is_slow: Whether a step still takes longer than before a paged rise of its time.
        is_loss_felt: Whether the loss is so far up that another finding does harm.
        is_diverging: Whether the loss has been far above the first losses for long.
        is_young: (modules,) whether there is no history to judge by.
        is_early_growth: Whether the total grows or the loss is worse than first, without a history.
    """

    norms: FloatArray
    deviations: tuple[Deviation, ...]
    rising: BoolArray
    falling: BoolArray
    high: BoolArray
    low: BoolArray
    is_calm: bool
    is_complete: bool
    is_loss_high: bool
    is_slow: bool
    is_loss_felt: bool
    is_diverging: bool
    is_young: BoolArray
    is_early_growth: bool

    def largest(self, *kinds: DeviationKind) -> Deviation | None:
        """Return the paged deviation of some kinds that is farthest beyond its record."""
        return next(
            (each for each in self.deviations if each.is_paged and each.kind in kinds), None
        )
