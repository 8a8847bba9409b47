"""The series of an attempt: one vector for each frame, made of its norms and its loss.

A module stands for the layers that share a name up to the last dot. It has two series: its own
norm, and the same less the factor that all modules have in common. A learning rate or a batch that
moves all modules at once moves the factor, so that the second series shows what one module does
alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray, any_true, quiet_log
from gradwatch_server.core.frames.step_numbers import StepNumbers
from gradwatch_server.core.judge.detector import APART, LOSS, NORM, STEP_TIME, SeriesKind, num_tests

TOTAL: Final = 0
LOSS_SERIES: Final = 1
PACE: Final = 2
FIRST_MODULE: Final = 3
"""Place of the first module: its own series, and beside it the one apart from the others."""

FLOOR_SAMPLES: Final = 16
"""Samples of which a floor is made."""

NORM_FLOOR: Final = 0.003
LOSS_FLOOR: Final = 0.01
"""Share of a series' first samples that is added before the logarithm: a solved task varies by
factors of 1,000, and nobody cares."""

SLOW_WEIGHT: Final = 0.003
"""Weight of a new sample in a module's slow level: a tenth of the usual level's, so that a common
jump stays in the common factor."""

MAX_RAW_LOSS: Final = 1e18
"""Magnitude at which a loss that is no logarithm is cut: its square is within float32."""

MAX_FLOOR: Final = 1e38
"""Largest floor: a float32 holds it."""

MAX_MOVE: Final = 0.5
LEAVE_ONE_OUT: Final = 4
"""Modules up to which a module counts for nothing in the factor that is taken from it."""


@dataclass(frozen=True, slots=True)
class FrameNumbers:
    """Numbers of one frame that the detector reads.

    Args:
        modules: (modules,) L2 norms, NaN where absent or where a layer is missing.
        total: L2 norm of everything; NaN if not known.
        loss: Mean over ranks; NaN without one.
        lr: Largest learning rate; NaN without one.
        history: Returns the steps since the frame before, None if there are none.
        step_time_s: Seconds of a step; NaN if not known.
        is_sound: Whether everything is finite and the step was taken; else a frame is no sample.
    """

    step: int
    modules: FloatArray
    total: float
    loss: float
    lr: float = math.nan
    history: Callable[[], StepNumbers | None] = lambda: None
    step_time_s: float = math.nan
    is_sound: bool = True


@dataclass(slots=True)
class SeriesMaker:
    """Logarithms of the frames of one attempt, with all that is remembered to make them."""

    is_raw_loss: bool = False
    """Whether a loss was negative: then the loss stands for itself."""
    slow: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(modules,) slow level, without the common factor."""
    num_samples: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(modules,)"""
    floor: FloatArray = field(default_factory=lambda: np.zeros(FIRST_MODULE))
    """(3 + modules,) number that is added: of the total, the loss, the pace, each module."""
    first_sum: FloatArray = field(default_factory=lambda: np.zeros(FIRST_MODULE))
    first_count: FloatArray = field(default_factory=lambda: np.zeros(FIRST_MODULE))
    """(3 + modules,) sum and number of the samples that the floor is made of."""
    common: float = 0.0
    """Common factor of the latest frame, nats."""

    def values(self, frame: FrameNumbers) -> FloatArray:
        """Return (3 + 2 * modules,) logarithms, NaN where there is no sample."""
        self.grow(len(frame.modules))
        values = np.empty(FIRST_MODULE + 2 * len(frame.modules))
        values[:] = np.nan
        if not frame.is_sound:
            return values
        numbers = np.concatenate([(frame.total, frame.loss, frame.step_time_s), frame.modules])
        numbers[numbers <= 0.0] = np.nan  # a norm of zero is no sample
        if -math.inf < frame.loss < 0.0:
            self.is_raw_loss = True
        logarithms = self._logarithms(numbers)
        if self.is_raw_loss:
            logarithms[LOSS_SERIES] = min(max(frame.loss, -MAX_RAW_LOSS), MAX_RAW_LOSS)
        values[:FIRST_MODULE] = logarithms[:FIRST_MODULE]
        modules = logarithms[FIRST_MODULE:]
        values[FIRST_MODULE::2] = modules
        values[FIRST_MODULE + 1 :: 2] = self._apart(modules)
        return values

    def grow(self, num_modules: int) -> None:
        """Add modules that have no sample yet."""
        more = num_modules - len(self.slow)
        if more > 0:
            for name in ("slow", "num_samples", "floor", "first_sum", "first_count"):
                setattr(self, name, np.concatenate([getattr(self, name), np.zeros(more)]))

    def select(self, modules: IndexArray) -> None:
        """Keep these modules in this order."""
        self.slow, self.num_samples = self.slow[modules], self.num_samples[modules]
        places = np.concatenate([np.arange(FIRST_MODULE), FIRST_MODULE + modules])
        for name in ("floor", "first_sum", "first_count"):
            setattr(self, name, getattr(self, name)[places])

    def _logarithms(self, numbers: FloatArray) -> FloatArray:
        logarithms = quiet_log(numbers + self.floor)
        young = self.first_count < FLOOR_SAMPLES
        if any_true(young) and any_true(young := young & ~np.isnan(logarithms)):
            self.first_sum[young] += logarithms[young]
            self.first_count[young] += 1
            ready = young & (self.first_count == FLOOR_SAMPLES)
            share = np.full(len(numbers), NORM_FLOOR)
            share[LOSS_SERIES] = LOSS_FLOOR
            usual = np.exp(self.first_sum[ready] / FLOOR_SAMPLES)
            # Rounded, for the last bit of an exponential differs between processors.
            floor = np.minimum(share[ready] * usual, MAX_FLOOR)
            self.floor[ready] = floor.astype(np.float32)
        return logarithms

    def _apart(self, modules: FloatArray) -> FloatArray:
        """Return (modules,) logarithms less the common factor, and learn the slow levels."""
        present = ~np.isnan(modules)
        known = present & (self.num_samples > 0)
        moves = modules - self.slow
        factor: FloatArray | float = 0.0
        count = int(np.add.reduce(known))
        if count:
            self.common = _median(moves[known])
            factor = self.common
            if 1 < count <= LEAVE_ONE_OUT:
                factor = self._of_others(moves, known)
        apart = modules - factor
        new = present & ~known
        self.slow[new] = apart[new]
        weight = np.maximum(SLOW_WEIGHT, 1.0 / (self.num_samples + 1.0))
        move = apart - self.slow
        np.minimum(move, MAX_MOVE, out=move)
        np.maximum(move, -MAX_MOVE, out=move)
        move *= weight
        np.add(self.slow, move, out=self.slow, where=known)
        self.num_samples += present
        if count < 2 and np.count_nonzero(present) < 2:  # with one module there are no others
            apart = np.full_like(apart, np.nan)
        return apart

    def _of_others(self, moves: FloatArray, known: BoolArray) -> FloatArray:
        places = np.flatnonzero(known)
        factor = np.full(len(moves), self.common)
        for place in places:
            factor[place] = _median(moves[places[places != place]])
        return factor


def _median(values: FloatArray) -> float:
    """Return the median of one number or more: `numpy.median` takes ten times as long."""
    ordered = values.copy()
    ordered.sort()
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[middle])
    return float((ordered[middle - 1] + ordered[middle]) / 2.0)


def kinds(num_modules: int) -> list[SeriesKind]:
    return [NORM, LOSS, STEP_TIME, *([NORM, APART] * num_modules)]


def tests(num_modules: int) -> FloatArray:
    """Return, for each series, the number of independent tests that share its budget."""
    return np.array([1.0, 1.0, 1.0, *([num_tests(num_modules)] * (2 * num_modules))])


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
