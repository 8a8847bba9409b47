"""Presence: layers that join a training, leave it, or miss a few frames.

The norm of a module, or of all of them, is only comparable with earlier ones that are of the same
layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray, grown

LEFT_FRAMES: Final = 16
"""Frames in a row without a layer after which it has left."""

NEVER: Final = -1


@dataclass(frozen=True, slots=True)
class Absence:
    """Layers of one frame that are not as before, (layers,) each.

    Args:
        missing: Not there, but in one of the last `LEFT_FRAMES` frames.
        changed: Joined with this frame, or left for good.
    """

    missing: BoolArray
    changed: BoolArray


@dataclass(slots=True)
class Presence:
    """Layers of the latest frames, (layers,) each."""

    num_frames: int = 0
    seen_at: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Number of the latest frame with the layer, `NEVER` without one."""
    norm: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Norm in it."""
    are_all: bool = True
    """Whether all were there in the latest frame."""

    def add(self, present: BoolArray, norms: FloatArray, *, is_whole: bool) -> Absence | None:
        """Take in a frame; return what is not as before, None if nothing is.

        Args:
            present: (layers,) whether there was a gradient.
            norms: (layers,) L2 norms.
            is_whole: Whether all ranks are in it: else nothing joins or leaves.
        """
        number, num = self.num_frames, len(present)
        if not is_whole and not self.num_frames:
            return None
        self.num_frames += is_whole
        is_grown = num > len(self.seen_at)
        if is_grown:
            self.seen_at = grown(self.seen_at, num, NEVER)
            self.norm = grown(self.norm, num, np.nan)
        are_all = 0 not in present.tobytes()
        if are_all and self.are_all and not is_grown:  # nearly always
            if not is_whole:
                return None
            self.seen_at[:], self.norm[:] = number, norms
            return None
        since = number - self.seen_at
        known = self.seen_at != NEVER
        joined = present & (~known | (since > LEFT_FRAMES))
        left = ~present & known & (since == LEFT_FRAMES + 1)
        missing = ~present & known & (since <= LEFT_FRAMES)
        if not is_whole:
            return Absence(missing, np.zeros_like(missing))
        self.seen_at[present], self.norm[present] = number, norms[present]
        self.are_all = are_all
        return Absence(missing, (joined | left) & (number > 0))
