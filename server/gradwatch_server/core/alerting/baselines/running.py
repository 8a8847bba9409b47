"""Running statistics of many series at once: usual value, spread, and largest of late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray, smallest_of
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
        self._young: BoolArray | None = np.zeros(0, dtype=np.bool_)  # None: no series is
        self._known: BoolArray | None = None  # of the next frame, None if it may have changed

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
        self._look_again()

    def deviation(self, floor: FloatArray | float) -> FloatArray:
        """Return (series,) standard deviations, at least *floor*: no series is called tight."""
        deviation = np.sqrt(self.variance)
        return np.maximum(deviation, floor, out=deviation)

    def is_known(self) -> BoolArray:
        """Return (series,) whether there are enough samples, half of the last frames among them."""
        if self._known is None:
            half = min(self._frames, PRESENCE_FRAMES) / 2
            self._known = (self.count >= MIN_SAMPLES) & (self._num_recent >= half)
            self._known.flags.writeable = False  # it is given out for many frames
        return self._known

    def add(self, samples: FloatArray, deviation: FloatArray, least_weight: float = 0.0) -> None:
        """Take in one frame.

        Args:
            samples: (series,), NaN where there is none.
            deviation: (series,) what `deviation` gave before.
            least_weight: Of the samples, where what is usual is to be learned anew quickly.
        """
        there = np.equal(samples, samples)  # not of a NaN
        is_whole = np.count_nonzero(there) == len(there)
        weight, settling = self._weight(there, max(WEIGHT, least_weight))
        distance = samples - self.mean
        bound = WINSOR * deviation
        if settling is not None:
            bound[settling] = np.inf
        if not is_whole:
            weight = np.where(there, weight, 0.0)
            distance[~there] = 0.0
            samples = np.where(there, samples, -np.inf)
        np.minimum(distance, bound, out=distance)
        np.negative(bound, out=bound)
        np.maximum(distance, bound, out=distance)
        self._move(distance, weight)
        self._raise_peak(samples, settling, is_whole=is_whole)
        self.count = self.count + (1 if is_whole else there)  # the old one was given out
        self._note_presence(there)

    def _weight(
        self, there: BoolArray, least: float
    ) -> tuple[FloatArray | float, BoolArray | None]:
        """Return the weight of each sample, and which series settle, None if nothing does."""
        if self._young is None or not np.count_nonzero(self._young & there):  # nearly always
            return least, None
        weight = np.maximum(1.0 / (self.count + 1.0), least)
        settling = self.count < SETTLING
        self._look_again()
        return weight, settling if np.count_nonzero(settling) else None

    def _move(self, distance: FloatArray, weight: FloatArray | float) -> None:
        """Move mean and variance. The mean is a new array: the old one was given out."""
        step = weight * distance
        self.mean = self.mean + step
        distance *= distance
        distance *= weight
        self.variance += distance
        self.variance *= 1.0 - weight

    def _note_presence(self, there: BoolArray) -> None:
        at = self._frames % PRESENCE_FRAMES
        self._frames += 1
        if self._frames <= PRESENCE_FRAMES:
            self._known = None
        recent = self._recent[at]
        if np.count_nonzero(recent != there):
            self._num_recent += there
            self._num_recent -= recent
            recent[:] = there
            self._known = None

    def _look_again(self) -> None:
        """Note that the numbers of samples changed: of few, each counts for more."""
        # With one more the weight of the next sample is the least one.
        young = self.count + 1 < 1.0 / WEIGHT
        self._young = young if np.count_nonzero(young) else None
        self._known = None

    def learn_again(self) -> None:
        """Count each series as if it had just become known."""
        self.count = np.minimum(self.count, MIN_SAMPLES)
        self._look_again()

    def rearranged(self, order: Sequence[int]) -> Self:
        """Return a copy with these of the series, in this order."""
        made = type(self)()
        for name in (*_ROWS, "count", "_num_recent"):
            setattr(made, name, getattr(self, name)[list(order)])
        made._recent = self._recent[:, list(order)]
        made._blocks = self._blocks[:, list(order)]
        made._frames = self._frames
        made._look_again()
        return made

    def restart(self, series: int) -> None:
        """Forget the samples of one series."""
        self.mean[series] = self.variance[series] = 0.0
        self.peak[series] = self.block[series] = -np.inf
        self.count[series] = self._num_recent[series] = 0
        self._recent[:, series] = False
        self._blocks[:, series] = -np.inf
        self._look_again()

    def _raise_peak(
        self, samples: FloatArray, settling: BoolArray | None, *, is_whole: bool
    ) -> None:
        """Take in samples, -Inf where there is none. The peak is a new array, as the mean is."""
        if self._frames % BLOCK == 0:
            self._blocks[self._frames // BLOCK % BLOCKS] = -np.inf
            self.block = np.full_like(self.block, -np.inf)
            self.peak = self._blocks.max(axis=0, initial=-np.inf)
        bounded = self.peak + LN_PEAK_GROWTH
        np.minimum(samples, bounded, out=bounded)
        # Without any sample of late there is no peak to bound it by.
        if settling is not None or not is_whole or smallest_of(self.peak) == -np.inf:
            free = self.peak == -np.inf
            if settling is not None:
                free |= settling
            np.copyto(bounded, samples, where=free)
        np.maximum(self.block, bounded, out=self.block)
        self._blocks[self._frames // BLOCK % BLOCKS] = self.block
        self.peak = np.maximum(self.peak, bounded, out=bounded)

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
        made._look_again()
        return made
