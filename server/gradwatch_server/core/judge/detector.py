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

from gradwatch_server.core.arrays import BoolArray, Float32Array, FloatArray, any_true

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

GROWN: Final = 8.0 / WEIGHT
"""Samples from which on the weights of a series stay as they are: the smallest is `WEIGHT` / 8."""

NUM_SCALES: Final = len(SCALES)
FALL_SCALE: Final = 2
"""Index of the first scale at which a fall is judged: the mean of 16 frames."""

SIDES: Final = (*range(NUM_SCALES), *range(FALL_SCALE, NUM_SCALES))
NUM_SIDES: Final = len(SIDES)
"""Scale of each side: a rise of every mean, then a fall of the slow ones."""

UNCUT: Final = 1e30
"""Distance at which nothing is cut; its product with 0 is 0."""


FALSE_ALERTS_PER_100K: Final = 5.0
MIN_FALSE_ALERTS: Final = 0.01
MAX_FALSE_ALERTS: Final = 1000.0
"""False alerts allowed in 100,000 frames: by default, at least, at most."""


@dataclass(frozen=True, slots=True)
class SeriesKind:
    """Constants of one kind of series.

    Args:
        alpha: (scales,) exponent of the tail beyond a record, per nat; of a loss per deviation.
        least_deviation: Smallest deviation, nats.
        least_margin: (scales,) smallest margin of a loss, nats.
    """

    alpha: tuple[float, ...]
    least_deviation: float
    is_loss: bool = False
    least_margin: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)


NORM: Final = SeriesKind((4.0, 2.6, 1.8, 1.6), 0.1)
APART: Final = SeriesKind((8.0, 8.0, 5.5, 3.7), 0.1)
LOSS: Final = SeriesKind(
    (0.8, 1.0, 1.2, 1.6), 0.02, is_loss=True, least_margin=(0.4, 0.25, 0.1, 0.1)
)
STEP_TIME: Final = SeriesKind((4.0, 4.0, 8.0, 12.0), 0.1)
RAW_LOSS: Final = SeriesKind((0.8, 1.0, 1.2, 1.6), 0.0, is_loss=True)
_KINDS: Final = NORM, APART, LOSS, STEP_TIME, RAW_LOSS


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
    window: Float32Array = field(default_factory=lambda: np.zeros((2, RING, 0), np.float32))
    """(2, RING, K) latest samples, 0 where absent, and 1 where a sample was there, else 0."""
    levels: Float32Array = field(default_factory=lambda: np.zeros((RING, 0), np.float32))
    """(RING, K) usual value after each of the latest frames, NaN before the first sample."""
    sums: FloatArray = field(default_factory=lambda: np.zeros((2, NUM_SCALES, 0)))
    """(2, scales, K) sum of the samples of each mean, and their number."""
    rise_square: FloatArray = field(default_factory=lambda: np.zeros((NUM_SCALES, 0)))
    """(scales, K) usual square of a rise."""
    rise_peaks: Float32Array = field(
        default_factory=lambda: np.zeros((RISE_RING, NUM_SIDES, 0), np.float32)
    )
    """(RISE_RING, sides, K) largest rise, or fall, of each block."""
    level_peaks: Float32Array = field(
        default_factory=lambda: np.zeros((LEVEL_RING, NUM_SIDES, 0), np.float32)
    )
    """(LEVEL_RING, sides, K) largest mean, for a fall with its sign turned."""

    @property
    def samples(self) -> Float32Array:
        """(RING, K) latest samples, 0 where absent."""
        samples: Float32Array = self.window[0]
        return samples

    @property
    def present(self) -> Float32Array:
        """(RING, K) 1 where a sample was there, else 0."""
        present: Float32Array = self.window[1]
        return present

    def grow(self, num_series: int) -> None:
        """Add series that have no sample yet."""
        num_known = len(self.level)
        if num_series == num_known:
            return
        for name, fill in _FILLS.items():
            array = getattr(self, name)
            shape = *array.shape[:-1], num_series
            made = np.full(shape, fill, array.dtype) if fill else np.zeros(shape, array.dtype)
            made[..., :num_known] = array
            setattr(self, name, made)

    def select(self, columns: list[int]) -> None:
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
    "window": 0.0,
    "levels": np.nan,
    "sums": 0.0,
    "rise_square": 0.0,
    "rise_peaks": -np.inf,
    "level_peaks": -np.inf,
}
"""Arrays of the state, and the value of a series without samples."""


class Detector:
    """Levels, rises and records of the series of one attempt.

    Args:
        state: Numbers of the frames so far; changed in place.
        num_tests: (K,) number of independent tests that share the budget of each series.
        budget: False alerts allowed in 100,000 frames, for all series together.

    Attributes:
        deviation: (K,) usual deviation of each series.
        rise_deviation: (scales, K) usual deviation of rises.
        rise: (scales, K) rise of each mean above the usual level before it.
        mean: (scales, K) mean of each window.
        up: (scales, K) excess of each rise over the record, as a part of the margin; -Inf where it
            cannot be judged.
        down: (scales from the mean of 16 frames, K) excess of each fall over the record.
    """

    def __init__(
        self, state: SeriesState, kinds: list[SeriesKind], num_tests: FloatArray, budget: float
    ) -> None:
        num = len(kinds)
        state.grow(num)
        self.state = state
        shape = NUM_SCALES, num
        places = {id(kind): place for place, kind in enumerate(_KINDS)}
        kind_of = np.array([places[id(kind)] for kind in kinds], dtype=np.int64)
        self._alpha = np.array([kind.alpha for kind in _KINDS]).T[:, kind_of]
        self._least_deviation = np.array([kind.least_deviation for kind in _KINDS])[kind_of]
        self._is_loss = np.array([kind.is_loss for kind in _KINDS])[kind_of]
        self._least_margin = np.array([kind.least_margin for kind in _KINDS]).T[:, kind_of]
        self._need = np.log(np.maximum(num_tests, 1.0) / (budget * BUDGET_SHARE / 1e5))
        self._factor, self._floor = np.empty(shape), np.empty(shape)
        self._record = np.empty((2, NUM_SIDES, num))
        self._excess = np.empty((2, NUM_SIDES, num))
        self._latest = np.empty((2, NUM_SIDES, num))  # rises and means, falls with their sign
        self._scratch, self._margin = np.empty(shape), np.empty(shape)
        self._leaving = np.empty((2, *shape), np.float32)
        self._before = np.empty(shape, np.float32)
        self._unknown = np.empty(shape, np.bool_)
        self._unjudged = np.empty(shape, np.bool_)
        self.deviation = np.empty(num)
        self.rise_deviation = np.empty(shape)
        self._part = np.empty((NUM_SIDES, num))
        self.rise: FloatArray = self._latest[0, :NUM_SCALES]
        self.mean: FloatArray = self._latest[1, :NUM_SCALES]
        self.up: FloatArray = self._part[:NUM_SCALES]
        self.down: FloatArray = self._part[NUM_SCALES:]
        self._renew_records()
        self._renew_weights()

    def update(self, values: FloatArray, patience: float = 1.0) -> None:
        """Judge a frame, and learn from it.

        Args:
            values: (K,) finite logarithms, NaN where a series is absent: it neither moves then, nor
                is it flagged.
            patience: Factor of all margins.
        """
        state = self.state
        slot = state.num_frames % RING
        absent = values != values  # noqa: PLR0124 - True for NaN
        present = ~absent
        sample = np.empty((2, 1, len(values)), np.float32)
        sample[0, 0], sample[1, 0] = values, present
        np.copyto(sample[0, 0], 0.0, where=absent)
        if any_true((state.num_samples < GROWN) & present):
            self._renew_weights()
        self._measure(slot, sample)
        self._judge(absent, patience)
        self._learn_rises()
        self._learn_level(sample[0, 0], present)
        state.window[:, slot] = sample[:, 0]
        state.levels[slot] = state.level
        np.copyto(state.levels[slot], np.nan, where=state.num_samples == 0)
        block = state.num_frames // BLOCK
        rises, levels = state.rise_peaks[block % RISE_RING], state.level_peaks[block % LEVEL_RING]
        np.fmax(rises, self._latest[0], out=rises)
        np.fmax(levels, self._latest[1], out=levels)
        state.num_frames += 1
        if state.num_frames % BLOCK == 0:
            self._begin_block()
            self._renew_records()

    def resume(self) -> None:
        """Learn quickly again after an interruption; records stay."""
        np.minimum(self.state.num_samples, RESUMED_SAMPLES, out=self.state.num_samples)

    def _measure(self, slot: int, sample: Float32Array) -> None:
        """Set `mean` and `rise`."""
        state = self.state
        places = (slot - SCALE_INDEX) % RING
        # With the mode "raise" numpy writes to a buffer first.
        state.window.take(places, 1, self._leaving, "clip")
        state.sums -= self._leaving
        state.sums += sample
        sums, counts = state.sums
        mean = np.divide(sums, counts, out=self.mean)
        np.less(counts, SCALE_COLUMN / 2.0, out=self._unknown)
        np.copyto(mean, np.nan, where=self._unknown)
        state.levels.take(places, 0, self._before, "clip")
        np.subtract(mean, self._before, out=self.rise)

    def _judge(self, absent: BoolArray, patience: float) -> None:
        """Set `deviation`, `rise_deviation`, `up` and `down`."""
        np.sqrt(self.state.variance, out=self.deviation)
        np.maximum(self.deviation, self._least_deviation, out=self.deviation)
        np.sqrt(self.state.rise_square, out=self.rise_deviation)
        np.divide(self.deviation, SQRT_SCALES, out=self._scratch)
        np.maximum(self.rise_deviation, self._scratch, out=self.rise_deviation)
        margin = np.multiply(self.rise_deviation, self._factor, out=self._margin)
        np.maximum(margin, self._floor, out=margin)
        if patience != 1.0:
            margin *= patience
        latest, excess = self._latest, self._excess
        np.negative(latest[:, FALL_SCALE:NUM_SCALES], out=latest[:, NUM_SCALES:])
        np.subtract(latest, self._record, out=excess)
        np.minimum(excess[0], excess[1], out=self._part)
        up, down = self.up, self.down
        up /= margin
        down /= margin[FALL_SCALE:]
        np.isnan(self.rise, out=self._unknown)
        np.logical_or(self._unknown, absent, out=self._unknown)
        unjudged = np.logical_or(self._unripe, self._unknown, out=self._unjudged)
        np.copyto(up, -np.inf, where=unjudged)
        np.copyto(down, -np.inf, where=unjudged[FALL_SCALE:])

    def _renew_weights(self) -> None:
        """Set what depends on the number of samples of each series, while one of them is young.

        What it says of a series that is absent does not count: that one is young when it comes.
        """
        num_samples = self.state.num_samples
        share = 1.0 / (num_samples + 1.0)
        self._weight = np.maximum(WEIGHT, share)
        self._rise_weight = np.maximum(RISE_WEIGHT, share)
        is_cut, is_rise_cut = num_samples >= UNCUT_SAMPLES, num_samples >= UNCUT_RISES
        self._uncut = np.where(is_cut, 0.0, UNCUT)
        self._gain = np.where(is_cut, 1.0 / HUBER_VARIANCE, 1.0)
        self._uncut_rise = np.where(is_rise_cut, 0.0, UNCUT)
        self._rise_gain = np.where(is_rise_cut, 1.0 / HUBER_VARIANCE, 1.0)
        self._unripe = num_samples < JUDGED_FROM

    def _learn_rises(self) -> None:
        state = self.state
        limit = np.multiply(self.rise_deviation, HUBER, out=self._scratch)
        limit += self._uncut_rise
        square = np.minimum(self.rise, limit, out=self._margin)
        np.negative(limit, out=limit)
        np.maximum(square, limit, out=square)
        square *= square
        square *= self._rise_gain
        square -= state.rise_square
        square *= self._rise_weight
        np.copyto(square, 0.0, where=self._unknown)
        state.rise_square += square

    def _learn_level(self, samples: Float32Array, present: BoolArray) -> None:
        state = self.state
        change = samples - state.level
        limit = HUBER * self.deviation
        limit += self._uncut
        np.minimum(change, limit, out=change)
        np.maximum(change, np.negative(limit, out=limit), out=change)
        change *= present
        step = self._weight * change
        state.level += step
        square = step * change
        square *= self._gain
        square += state.variance
        square *= 1.0 - self._weight
        np.copyto(state.variance, square, where=present)
        state.num_samples += present

    def _begin_block(self) -> None:
        block = self.state.num_frames // BLOCK
        self.state.block_samples[:] = self.state.num_samples
        self.state.rise_peaks[block % RISE_RING] = -np.inf
        self.state.level_peaks[block % LEVEL_RING] = -np.inf

    def _renew_records(self) -> None:
        """Set records and limits for the block that begins."""
        state = self.state
        block = state.num_frames // BLOCK
        for side, scale in enumerate(SIDES):
            last = block - LAGS[scale]  # the first block that is too young
            rises = [number % RISE_RING for number in range(last - RISE_BLOCKS, last)]
            levels = [number % LEVEL_RING for number in range(last - LEVEL_BLOCKS, last)]
            self._record[0, side] = state.rise_peaks[rises, side].max(axis=0)
            self._record[1, side] = state.level_peaks[levels, side].max(axis=0)
        np.maximum(self._record[0], 0.0, out=self._record[0])
        for scale, (frames, lag) in enumerate(zip(SCALES, LAGS, strict=True)):
            in_record = np.clip(state.block_samples - BLOCK * lag, 0.0, BLOCK * RISE_BLOCKS)
            alpha = self._alpha[scale]
            heavy = np.minimum(alpha, HEAVY_TAIL)
            alpha = alpha + (heavy - alpha) * (RING / (RING + in_record))
            chance = np.maximum(self._need - np.log(in_record + frames), 0.0)
            chance /= alpha
            known = np.maximum(in_record, state.block_samples * YOUNG_SHARE)
            shortness = 1.0 / np.maximum(known, frames) - 1.0 / (BLOCK * RISE_BLOCKS)
            few = np.exp(6.0 * frames * shortness)
            self._factor[scale] = np.where(self._is_loss, few * chance, 2.0 * few)
            self._floor[scale] = np.where(self._is_loss, self._least_margin[scale], chance)


YOUNG_SHARE: Final = 0.25
"""Share of the samples that count as known while the record is empty."""

BUDGET_SHARE: Final = 0.25
"""Share of the budget for each of: norms, norms apart from the others, the total, the loss."""


def num_tests(num_series: int) -> float:
    return float(num_series) ** 0.65 if num_series else math.nan
