"""One detector for every series of an attempt: how far each is beyond its own record.

A series is one number per frame, the logarithm of a norm or of a loss. The means over its last 1,
4, 16 and 64 frames are compared with its usual level before these frames, and the rise of each mean
with the record that the same series has set in 256 frames. The excess over the record, as a part of
the margin that a budget of false alerts allows, is what the judge works with: 1 and more is
flagged.

Every array has one column for each of K series. Formulas and constants: docs/alerts.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import BoolArray, Float32Array, FloatArray

SCALES: Final = (1, 4, 16, 64)
"""Frames of each mean."""

RING: Final = 64
BLOCK: Final = 16
"""Frames of a block; of each the record keeps the largest values."""

LAGS: Final = (2, 2, 2, 4)
"""Blocks after which a value is part of the record, by scale: growth must not excuse itself."""

RISE_BLOCKS: Final = 16
LEVEL_BLOCKS: Final = 4
RISE_RING: Final = RISE_BLOCKS + max(LAGS) + 1
LEVEL_RING: Final = LEVEL_BLOCKS + max(LAGS) + 1

WEIGHT: Final = 0.03
"""Weight of a new sample in the usual level."""

HUBER: Final = 1.5
"""Deviations beyond which a sample counts as that far away."""

HUBER_VARIANCE: Final = 0.7785
"""Variance of a standard normal number cut at 1.5."""

UNCUT_SAMPLES: Final = 8
UNCUT_RISES: Final = 16
RESUMED_SAMPLES: Final = 32

HEAVY_TAIL: Final = 4.0
"""Exponent of the tail of a series of which little is known."""

SQRT_SCALES: Final = np.sqrt(np.array(SCALES, dtype=np.float64))[:, None]
SCALE_COLUMN: Final = np.array(SCALES, dtype=np.float64)[:, None]
SCALE_INDEX: Final = np.array(SCALES)
RISE_WEIGHT: Final = WEIGHT / SQRT_SCALES
JUDGED_FROM: Final = np.array([[4.0], [8.0], [32.0], [128.0]])
"""(scales, 1) samples from which on a series is judged."""


FALSE_ALERTS_PER_100K: Final = 5.0
MIN_FALSE_ALERTS: Final = 0.01
MAX_FALSE_ALERTS: Final = 1000.0
"""False alerts allowed in 100,000 frames: by default, at least, at most."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Constants of one kind of series.

    Args:
        alpha: (scales,) exponent of the tail beyond a record, per nat; of a loss per deviation.
        least_deviation: Smallest deviation, nats.
        is_loss: Whether margins count deviations.
        least_margin: (scales,) smallest margin of a loss, nats.
    """

    alpha: tuple[float, ...]
    least_deviation: float
    is_loss: bool = False
    least_margin: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)


NORM: Final = Kind((4.0, 2.6, 1.8, 1.6), 0.1)
APART: Final = Kind((8.0, 8.0, 5.5, 3.7), 0.1)
LOSS: Final = Kind((0.8, 1.0, 1.2, 1.6), 0.02, is_loss=True, least_margin=(0.4, 0.25, 0.1, 0.1))
STEP_TIME: Final = Kind((4.0, 4.0, 8.0, 12.0), 0.1)
RAW_LOSS: Final = Kind((0.8, 1.0, 1.2, 1.6), 0.0, is_loss=True)


@dataclass(slots=True)
class SeriesState:
    """Numbers of the detector that outlive a frame, for K series."""

    num_frames: int = 0
    num_samples: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(K,)"""
    level: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(K,) usual value."""
    block_samples: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(K,) samples when the current block began: of them limits are made, also after a restart."""
    variance: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(K,)"""
    samples: Float32Array = field(default_factory=lambda: np.zeros((RING, 0), np.float32))
    """(RING, K) latest samples, 0 where absent."""
    present: Float32Array = field(default_factory=lambda: np.zeros((RING, 0), np.float32))
    """(RING, K) 1 where a sample was there, else 0."""
    levels: Float32Array = field(default_factory=lambda: np.zeros((RING, 0), np.float32))
    """(RING, K) usual value after each of the latest frames, NaN before the first sample."""
    sums: FloatArray = field(default_factory=lambda: np.zeros((4, 0)))
    """(scales, K) sum of the samples of each window."""
    counts: FloatArray = field(default_factory=lambda: np.zeros((4, 0)))
    """(scales, K) number of them."""
    rise_square: FloatArray = field(default_factory=lambda: np.zeros((4, 0)))
    """(scales, K) usual square of a rise."""
    rise_peaks: Float32Array = field(
        default_factory=lambda: np.zeros((RISE_RING, 2, 4, 0), np.float32)
    )
    """(RISE_RING, 2, scales, K) largest rise, and largest fall, of each block."""
    level_peaks: Float32Array = field(
        default_factory=lambda: np.zeros((LEVEL_RING, 2, 4, 0), np.float32)
    )
    """(LEVEL_RING, 2, scales, K) largest mean, and largest mean with its sign turned."""

    def grow(self, num_series: int) -> None:
        """Add series that have no sample yet."""
        more = num_series - len(self.level)
        for name, fill in _FILLS.items():
            array = getattr(self, name)
            new = np.full((*array.shape[:-1], more), fill, array.dtype)
            setattr(self, name, np.concatenate([array, new], axis=-1))

    def take(self, columns: list[int]) -> None:
        """Keep these series in this order."""
        for name in _FILLS:
            setattr(self, name, np.ascontiguousarray(getattr(self, name)[..., columns]))

    def restart(self, series: int) -> None:
        """Forget a series: its unit has changed."""
        for name, fill in _FILLS.items():
            getattr(self, name)[..., series] = fill


_FILLS: Final = {
    "num_samples": 0.0,
    "block_samples": 0.0,
    "level": 0.0,
    "variance": 0.0,
    "samples": 0.0,
    "present": 0.0,
    "levels": np.nan,
    "sums": 0.0,
    "counts": 0.0,
    "rise_square": 0.0,
    "rise_peaks": -np.inf,
    "level_peaks": -np.inf,
}
"""Arrays of the state, and the value of a series without samples."""


class Detector:
    """Levels, rises and records of the series of one attempt.

    Args:
        state: Numbers of the frames so far; changed in place.
        kinds: Kind of each of the K series.
        num_tests: (K,) number of independent tests that share the budget of each series.
        budget: False alerts allowed in 100,000 frames, for all series together.
    """

    def __init__(
        self, state: SeriesState, kinds: list[Kind], num_tests: FloatArray, budget: float
    ) -> None:
        num = len(kinds)
        state.grow(num)
        self.state = state
        self._alpha = np.array([kind.alpha for kind in kinds]).T.reshape(4, num)
        self._least_deviation = np.array([kind.least_deviation for kind in kinds])
        self._is_loss = np.array([kind.is_loss for kind in kinds], dtype=np.bool_)
        self._losses = np.flatnonzero(self._is_loss)
        self._least_margin = np.array([kind.least_margin for kind in kinds]).T.reshape(4, num)
        self._need = np.log(np.maximum(num_tests, 1.0) / (budget * BUDGET_SHARE / 1e5))
        self._chance, self._few = np.empty((4, num)), np.empty((4, num))
        self._rise_record, self._level_record = np.empty((2, 4, num)), np.empty((2, 4, num))
        self._scratch, self._leaving = np.empty((4, num)), np.empty((4, num), np.float32)
        self._before = np.empty((4, num), np.float32)
        self.mean, self.rise = np.empty((4, num)), np.empty((4, num))
        """(scales, K) mean of each window, and its rise above the usual level before it."""
        self.deviation = np.empty(num)
        self.rise_deviation = np.empty((4, num))
        self.part = np.empty((2, 4, num))
        """(2, scales, K) excess of each rise, and fall, over the record, as a part of the margin;
        -Inf where it cannot be judged."""
        self._renew_records()

    def update(self, values: FloatArray, patience: float = 1.0) -> None:
        """Judge a frame, and learn from it.

        Args:
            values: (K,) finite logarithms, NaN where a series is absent: it neither moves then, nor
                is it flagged.
            patience: Factor of all margins.
        """
        state = self.state
        slot = state.num_frames % RING
        present = values == values  # noqa: PLR0124 - False for NaN
        samples = np.where(present, values, 0.0).astype(np.float32)
        self._measure(slot, samples, present)
        self._judge(present)
        if patience != 1.0:
            self.part /= patience
        self._learn_rises(present)
        self._learn_level(samples, present)
        state.samples[slot], state.present[slot] = samples, present
        state.levels[slot] = np.where(state.num_samples > 0, state.level, np.nan)
        self._note_peaks()
        state.num_frames += 1
        if state.num_frames % BLOCK == 0:
            self._begin_block()
            self._renew_records()

    def resume(self) -> None:
        """Learn quickly again after an interruption; records stay."""
        np.minimum(self.state.num_samples, RESUMED_SAMPLES, out=self.state.num_samples)

    def _measure(self, slot: int, samples: Float32Array, present: BoolArray) -> None:
        """Set `mean` and `rise`."""
        state = self.state
        places = (slot - SCALE_INDEX) % RING
        np.take(state.samples, places, axis=0, out=self._leaving)
        state.sums -= self._leaving
        state.sums += samples
        np.take(state.present, places, axis=0, out=self._leaving)
        state.counts -= self._leaving
        state.counts += present
        np.divide(state.sums, state.counts, out=self.mean)
        self.mean[state.counts < SCALE_COLUMN / 2.0] = np.nan
        np.take(state.levels, places, axis=0, out=self._before)
        np.subtract(self.mean, self._before, out=self.rise)

    def _judge(self, present: BoolArray) -> None:
        """Set `deviation`, `rise_deviation` and `part`."""
        state = self.state
        np.sqrt(state.variance, out=self.deviation)
        np.maximum(self.deviation, self._least_deviation, out=self.deviation)
        np.sqrt(state.rise_square, out=self.rise_deviation)
        np.divide(self.deviation, SQRT_SCALES, out=self._scratch)
        np.maximum(self.rise_deviation, self._scratch, out=self.rise_deviation)
        margin = np.multiply(self.rise_deviation, self._few, out=self._scratch)
        losses = self._losses
        of_losses = np.maximum(
            margin[:, losses] * self._chance[:, losses], self._least_margin[:, losses]
        )
        margin *= 2.0
        np.maximum(margin, self._chance, out=margin)
        margin[:, losses] = of_losses
        for place, sign in enumerate((1.0, -1.0)):
            part = np.multiply(self.rise, sign, out=self.part[place])
            part -= self._rise_record[place]
            excess = np.multiply(self.mean, sign)
            excess -= self._level_record[place]
            np.minimum(part, excess, out=part)
            part /= margin
        unjudged = ~(state.num_samples >= JUDGED_FROM)
        unjudged |= ~present
        unjudged |= np.isnan(self.rise)
        self.part[:, unjudged] = -np.inf

    def _learn_rises(self, present: BoolArray) -> None:
        state = self.state
        is_cut = state.num_samples >= UNCUT_RISES
        limit = np.multiply(self.rise_deviation, HUBER, out=self._scratch)
        square = np.clip(self.rise, -limit, limit, where=is_cut, out=self.rise.copy())
        square *= square
        np.divide(square, HUBER_VARIANCE, out=square, where=is_cut)
        square -= state.rise_square
        square *= np.maximum(RISE_WEIGHT, 1.0 / (state.num_samples + 1.0))
        known = present & ~np.isnan(self.rise)
        np.add(state.rise_square, square, out=state.rise_square, where=known)

    def _learn_level(self, samples: Float32Array, present: BoolArray) -> None:
        state = self.state
        weight = np.maximum(WEIGHT, 1.0 / (state.num_samples + 1.0))
        is_cut = state.num_samples >= UNCUT_SAMPLES
        change = samples - state.level
        limit = HUBER * self.deviation
        np.clip(change, -limit, limit, where=is_cut, out=change)
        change *= present
        step = weight * change
        state.level += step
        square = step * change
        np.divide(square, HUBER_VARIANCE, out=square, where=is_cut)
        square += state.variance
        square *= 1.0 - weight
        np.copyto(state.variance, square, where=present)
        state.num_samples += present

    def _note_peaks(self) -> None:
        state = self.state
        block = state.num_frames // BLOCK
        for peaks, values in (
            (state.rise_peaks[block % RISE_RING], self.rise),
            (state.level_peaks[block % LEVEL_RING], self.mean),
        ):
            np.fmax(peaks[0], values, out=peaks[0])
            np.fmax(peaks[1], np.negative(values), out=peaks[1])

    def _begin_block(self) -> None:
        block = self.state.num_frames // BLOCK
        self.state.block_samples[:] = self.state.num_samples
        self.state.rise_peaks[block % RISE_RING] = -np.inf
        self.state.level_peaks[block % LEVEL_RING] = -np.inf

    def _renew_records(self) -> None:
        """Set records and limits for the block that begins."""
        state = self.state
        block = state.num_frames // BLOCK
        for scale, (frames, lag) in enumerate(zip(SCALES, LAGS, strict=True)):
            last = block - lag  # the first block that is too young
            rises = [number % RISE_RING for number in range(last - RISE_BLOCKS, last)]
            levels = [number % LEVEL_RING for number in range(last - LEVEL_BLOCKS, last)]
            self._rise_record[:, scale] = state.rise_peaks[rises, :, scale].max(axis=0)
            self._level_record[:, scale] = state.level_peaks[levels, :, scale].max(axis=0)
            in_record = np.clip(state.block_samples - BLOCK * lag, 0.0, BLOCK * RISE_BLOCKS)
            alpha = self._alpha[scale]
            heavy = np.minimum(alpha, HEAVY_TAIL)
            alpha = alpha + (heavy - alpha) * (RING / (RING + in_record))
            chance = np.maximum(self._need - np.log(in_record + frames), 0.0)
            self._chance[scale] = chance / alpha
            known = np.maximum(in_record, state.block_samples * YOUNG_SHARE)
            shortness = 1.0 / np.maximum(known, frames) - 1.0 / (BLOCK * RISE_BLOCKS)
            self._few[scale] = np.exp(6.0 * frames * shortness)
        np.maximum(self._rise_record, 0.0, out=self._rise_record)


YOUNG_SHARE: Final = 0.25
"""Share of the samples that count as known while the record is empty."""

BUDGET_SHARE: Final = 0.25
"""Share of the budget for each of: norms, norms apart from the others, the total, the loss."""


def num_tests(num_series: int) -> float:
    """Return the number of independent tests that so many series of norms amount to."""
    return float(num_series) ** 0.65 if num_series else math.nan
