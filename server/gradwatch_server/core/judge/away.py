"""Series that stay away from their usual level, and a loss that diverges."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray

LN_2: Final = math.log(2.0)
PATIENCE: Final = 0.5
MAX_PATIENCE: Final = 3.0
"""Share that each deviation which is over adds to the margins, and the most that they are
multiplied by: a training that goes through storms by nature is judged by them."""

PATIENCE_FRAMES: Final = 2048
"""Frames after which such a deviation counts for a third."""

NEAR_FRAMES: Final = 16
"""Frames near the old level after which a deviation is over."""


@dataclass(slots=True)
class Away:
    """Series that left their level by a paged deviation, (series,) each."""

    level: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Usual level before the deviation, NaN for a series that is not away."""
    limit: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Distance from the level within which a series is near it: ln 2, or half of a smaller rise."""
    sign: FloatArray = field(default_factory=lambda: np.zeros(0))
    """1 for a rise, -1 for a fall."""
    frames: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    near: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Frames in a row near the level."""
    any: bool = False
    num_passed: float = 0.0
    """Deviations that are over, older ones for less."""

    @property
    def patience(self) -> float:
        """Factor of the margins, 1 and more."""
        return min(1.0 + PATIENCE * self.num_passed, MAX_PATIENCE)

    def grow(self, num_series: int) -> None:
        more = num_series - len(self.level)
        if more > 0:
            self.level = np.concatenate([self.level, np.full(more, np.nan)])
            self.limit = np.concatenate([self.limit, np.full(more, LN_2)])
            self.sign = np.concatenate([self.sign, np.ones(more)])
            zeros = np.zeros(more, dtype=np.int64)
            self.frames = np.concatenate([self.frames, zeros])
            self.near = np.concatenate([self.near, zeros])

    def begin(self, series: IndexArray, level: FloatArray, rise: FloatArray, sign: float) -> None:
        """Note that series leave their level; those that are away already keep theirs.

        Args:
            level: (series,) usual value before.
            rise: (series,) difference from it.
            sign: 1 for a rise, -1 for a fall.
        """
        new = series[np.isnan(self.level[series])]
        self.level[new] = level[new]
        self.limit[new] = np.minimum(np.abs(rise[new]) / 2.0, LN_2)
        self.sign[new] = sign
        self.frames[new] = self.near[new] = 0
        self.any = bool(self.any or len(new))

    def update(self, values: FloatArray, most_frames: int) -> BoolArray:
        """Take in a frame, and return (series,) those that are still away."""
        away = ~np.isnan(self.level)
        off = self.sign * (values - self.level) > self.limit
        self.frames += away
        self.near = np.where(off, 0, self.near + (away & ~np.isnan(values)))
        over = away & ((self.near >= NEAR_FRAMES) | (self.frames > most_frames))
        self.level[over] = np.nan
        self.any = bool(np.count_nonzero(away & ~over))
        self.num_passed += not self.any
        return away & ~over & (off | np.isnan(values))


DIVERGED: Final = 1.5
DIVERGED_SCALE: Final = 2
DIVERGED_FRAMES: Final = 32
"""Times the first losses at which the mean of 16 frames stays while a training diverges."""

LOST: Final = 100.0
LOST_SCALE: Final = 1
"""Times the first losses beyond which the mean of 4 frames says at once that training is lost."""


@dataclass(slots=True)
class Divergence:
    """Frames in a row in which the mean loss was far above the first losses."""

    num_frames: int = 0

    def add(self, means: FloatArray, first_loss: float) -> bool:
        """Take in a frame; tell whether the training diverges.

        Args:
            means: (scales,) logarithm of the mean loss over 1, 4, 16 and 64 frames.
            first_loss: Mean of the first losses, 0 if it is not known or no logarithm is taken.
        """
        if not first_loss > 0.0:
            self.num_frames = 0
            return False
        is_up = bool(means[DIVERGED_SCALE] > math.log(DIVERGED * first_loss))
        self.num_frames = self.num_frames + 1 if is_up else 0
        is_lost = bool(means[LOST_SCALE] > math.log(LOST * first_loss))
        return is_lost or self.num_frames >= DIVERGED_FRAMES
