"""Divergence: a loss that stays far above the first losses."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from gradwatch_server.core.arrays import FloatArray

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
