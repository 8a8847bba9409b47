"""Onsets: the frame in which a slow change left its level, from the history of one series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import FloatArray, IndexArray

LEVEL_FRAMES: Final = 128
"""The level is that of so many frames, of half of them all where there are fewer than twice as
many."""

FENCE: Final = 3.0
"""Deviations from the level within which a frame may still belong to it."""

MIN_DEVIATION: Final = 0.1
"""Of a logarithm, as for what is usual."""

LONG_FRAMES: Final = 20
"""A change that took so long is looked for in the whole window, another one near the fence."""

_NEAR_FRAMES: Final = 16


@dataclass(frozen=True, slots=True)
class Onset:
    """Where a change began.

    Args:
        index: The first frame that is part of it.
        error: By about how many frames that may be wrong.
    """

    index: int
    error: int


def find_onset(series: FloatArray, sign: int, least_frames: int = 1) -> Onset:
    """Return where a change began that was told at the last frame.

    The last frame within 3 deviations of the level, going back, is too late by far: the noise
    covers a change of several times. So a line that is level up to a frame and then goes straight
    up is fitted by least squares, or a step if that fits better; the best frame is the onset. If
    the last frame within the deviations is d < 20 frames back, only frames near it are tried.

    Args:
        series: (frames,) logarithms of a norm, oldest first, finite, at least two.
        sign: 1 of a rise, -1 of a fall.
        least_frames: So old the change is known to be; single frames that are back among the usual
            ones are no longer taken for its beginning.
    """
    last = len(series) - 1
    level, deviation = _level(series[: min(LEVEL_FRAMES, max(1, len(series) // 2))])
    inside = np.flatnonzero(sign * (series - level) <= FENCE * deviation)
    fence = min(int(inside[-1]) if len(inside) else 0, max(0, last - least_frames))
    distance = last - fence
    first = 0
    if distance < LONG_FRAMES:
        first = max(0, fence - 3 * distance - _NEAR_FRAMES)
        before = series[max(0, first - LEVEL_FRAMES) : first]
        if len(before) >= _NEAR_FRAMES:
            level, _ = _level(before)
    index = first + _best(sign * (series[first:] - level), fence - first)
    return Onset(min(index, last), max(1, distance // 4))


def _level(series: FloatArray) -> tuple[float, float]:
    """Return the median, and the deviation from it that the middle half of the frames has."""
    low, middle, high = np.percentile(series, [25, 50, 75])
    return float(middle), max(float(high - low) / 1.349, MIN_DEVIATION)


def _best(height: FloatArray, last: int) -> int:
    """Return the first frame of the ramp or step, not after *last* + 1, that fits best.

    What a fit takes off the sum of squares is (Σ h·g)² / Σ g² for a shape g.
    """
    number = len(height)
    place: IndexArray = np.arange(number, dtype=np.int64)
    after = number - place  # frames from there on
    added = np.cumsum(height[::-1])[::-1]
    weighted = np.cumsum((height * place)[::-1])[::-1] - place * added
    steps = np.maximum(added, 0.0) ** 2 / after
    squares = (after - 1.0) * after * (2.0 * after - 1.0) / 6.0
    # A ramp over one frame is a step.
    ramps = np.maximum(weighted, 0.0) ** 2 / np.maximum(squares, 1.0) * (after > 2)
    end = min(max(last, 0), number - 1) + 1
    ramp, step = int(np.argmax(ramps[:end])), int(np.argmax(steps[: end + 1]))
    return ramp + 1 if ramps[ramp] > steps[step] else step
