"""Running statistics of many series at once: usual value, spread, and largest of late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.packing import pack, unpack

WEIGHT: Final = 0.03
"""Of a new sample once there are many."""

WINSOR: Final = 3.0
"""A sample counts at most so many standard deviations from the mean."""

SETTLING: Final = 8
"""The first samples count in full: there is no spread yet to go by."""

MIN_SAMPLES: Final = 32
"""Before so many, nothing is called unusual."""

BLOCK: Final = 16
"""Frames per block of the largest of late."""

BLOCKS: Final = 16
PEAK_FRAMES: Final = BLOCK * BLOCKS
"""The largest of late is over this many frames."""

LN_PEAK_GROWTH: Final = 0.4054651081083829
"""ln 1.5: by so much at most one sample raises the largest of late."""

PRESENCE_FRAMES: Final = 64

_ROWS: Final = ("mean", "variance", "block", "peak")


class RunningStatistics:
    """Winsorised mean and variance with exponential weights, and the largest of 256 frames.

    One outlier moves the mean by 0.09 standard deviations and the largest by half at most, and no
    bookkeeping of outliers is needed; a lasting change is learned by itself. `docs/alerts.md` says
    on what the numbers were chosen.

    Attributes:
        mean: (series,) weighted mean.
        variance: (series,) weighted variance about it.
        peak: (series,) largest of the last 256 frames, -Inf without any.
        count: (series,) samples so far.
    """

    def __init__(self) -> None:
        self.mean = np.zeros(0)
        self.variance = np.zeros(0)
        self.peak = np.zeros(0)
        self.block = np.zeros(0)
        self.count: IndexArray = np.zeros(0, dtype=np.int64)
        self._recent = np.zeros((PRESENCE_FRAMES, 0), dtype=np.bool_)
        self._num_recent: IndexArray = np.zeros(0, dtype=np.int64)
        self._blocks = np.zeros((BLOCKS, 0))
        self._frames = 0

    def __len__(self) -> int:
        """Number of series."""
        return len(self.mean)

    def fit(self, number: int) -> None:
        """Make room for *number* series; new ones have no sample yet."""
        more = number - len(self)
        if more <= 0:
            return
        self.mean = np.append(self.mean, np.zeros(more))
        self.variance = np.append(self.variance, np.zeros(more))
        self.peak = np.append(self.peak, np.full(more, -np.inf))
        self.block = np.append(self.block, np.full(more, -np.inf))
        self.count = np.append(self.count, np.zeros(more, dtype=np.int64))
        self._num_recent = np.append(self._num_recent, np.zeros(more, dtype=np.int64))
        self._recent = np.hstack([self._recent, np.zeros((PRESENCE_FRAMES, more), dtype=np.bool_)])
        self._blocks = np.hstack([self._blocks, np.full((BLOCKS, more), -np.inf)])

    def deviation(self, floor: FloatArray) -> FloatArray:
        """Return (series,) standard deviations, at least *floor*: no series is called tight."""
        return np.maximum(np.sqrt(self.variance), floor)

    def is_known(self) -> BoolArray:
        """Return (series,) whether there are enough samples, half of the last frames among them."""
        half = min(self._frames, PRESENCE_FRAMES) / 2
        known: BoolArray = (self.count >= MIN_SAMPLES) & (self._num_recent >= half)
        return known

    def add(self, samples: FloatArray, deviation: FloatArray, least_weight: float = 0.0) -> None:
        """Take in one frame.

        Args:
            samples: (series,), NaN where there is none.
            deviation: (series,) what `deviation` gave before.
            least_weight: Of the samples, where what is usual is to be learned anew quickly.
        """
        there = ~np.isnan(samples)
        settling = self.count < SETTLING
        distance = np.where(there, samples - self.mean, 0.0)
        bound = np.where(settling, np.inf, WINSOR * deviation)
        distance = np.minimum(np.maximum(distance, -bound), bound)
        weight = np.maximum(1.0 / (self.count + 1.0), max(WEIGHT, least_weight))
        weight = np.where(there, weight, 0.0)
        self.mean += weight * distance
        self.variance = (1.0 - weight) * (self.variance + weight * (distance * distance))
        self._raise_peak(np.where(there, samples, -np.inf), settling)
        self.count += there
        at = self._frames % PRESENCE_FRAMES
        self._num_recent += there.astype(np.int64) - self._recent[at]
        self._recent[at] = there
        self._frames += 1

    def restart(self, series: int) -> None:
        """Forget the samples of one series."""
        self.mean[series] = self.variance[series] = 0.0
        self.peak[series] = self.block[series] = -np.inf
        self.count[series] = self._num_recent[series] = 0
        self._recent[:, series] = False
        self._blocks[:, series] = -np.inf

    def _raise_peak(self, samples: FloatArray, settling: BoolArray) -> None:
        if self._frames % BLOCK == 0:
            self._blocks[self._frames // BLOCK % BLOCKS] = -np.inf
            self.block = np.full_like(self.block, -np.inf)
            self.peak = self._blocks.max(axis=0, initial=-np.inf)
        bounded = np.minimum(samples, self.peak + LN_PEAK_GROWTH)
        # Without any sample of late there is no peak to bound it by.
        bounded = np.where(settling | np.isneginf(self.peak), samples, bounded)
        self.block = np.maximum(self.block, bounded)
        self._blocks[self._frames // BLOCK % BLOCKS] = self.block
        self.peak = np.maximum(self.peak, bounded)

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `from_state_dict`."""
        return {
            **{name: pack(getattr(self, name)) for name in _ROWS},
            "count": pack(self.count),
            "recent": pack(self._recent),
            "blocks": pack(self._blocks),
            "frames": self._frames,
        }

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> Self:
        """Return what `state_dict` described."""
        made = cls()
        for name in _ROWS:
            setattr(made, name, np.array(unpack(state[name]), dtype=np.float64))
        made.count = np.array(unpack(state["count"]), dtype=np.int64)
        made._recent = np.array(unpack(state["recent"]), dtype=np.bool_)
        made._num_recent = made._recent.sum(axis=0, dtype=np.int64)
        made._blocks = np.array(unpack(state["blocks"]), dtype=np.float64)
        made._frames = state["frames"]
        return made
