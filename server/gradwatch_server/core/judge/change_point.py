"""The frame in which a change began, from the latest samples of one series."""

from __future__ import annotations

from typing import Final

import numpy as np

from gradwatch_server.core.arrays import FloatArray, IndexArray

MAX_DEVIATIONS: Final = 50.0
"""Deviations at which a sample is cut: one frame is not to outweigh all others."""

HINGE_SHARE: Final = 0.8
"""Share of a step's squared error below which a hinge is the better fit."""

NEARLY_BEST: Final = 1.1
"""Times the smallest error within which the latest frame is taken: the earliest is too early."""

MIN_HINGE_FRAMES: Final = 16
"""Frames of a window from which on a change may be a slow one."""


def change_point(samples: FloatArray, level: float, deviation: float, frames: int) -> int:
    """Return the index of the first sample after a change that the last sample shows.

    A step is placed where the sum of deviations after it, over the root of their number, is largest
    (Hinkley 1970). For a window of 16 frames and more a hinge is tried as well.

    Args:
        samples: (frames,) oldest first, NaN where absent; the last is there.
        level: Usual value before the change.
        deviation: Usual deviation from it.
        frames: Frames of the window that was flagged.
    """
    number = len(samples)
    z = np.clip((samples - level) / deviation, -MAX_DEVIATIONS, MAX_DEVIATIONS)
    z = np.where(np.isnan(z), 0.0, z)
    z *= 1.0 if z[-frames:].sum() >= 0.0 else -1.0
    after: IndexArray = np.arange(number, 0, -1, dtype=np.int64)
    sums = np.cumsum(z[::-1])[::-1]
    step = int(np.argmax(sums / np.sqrt(after)))
    if frames < MIN_HINGE_FRAMES:
        return step
    total = float(np.dot(z, z))
    of_step = total - max(float(sums[step]), 0.0) ** 2 / float(after[step])
    errors = np.array([total - _hinge_gain(z, place) for place in range(number - 1)])
    if errors.min() >= HINGE_SHARE * of_step:
        return step
    return int(np.flatnonzero(errors <= NEARLY_BEST * errors.min())[-1]) + 1


def _hinge_gain(z: FloatArray, place: int) -> float:
    """Return what a line that leaves zero at a place takes off the sum of squares."""
    slope = np.arange(len(z) - place, dtype=np.float64)
    return max(float(np.dot(z[place:], slope)), 0.0) ** 2 / float(np.dot(slope, slope))
