"""Deviations: flags of the detector, and those of them that a person should hear of.

A flag says that a series is beyond its own record. It becomes a page where training suffers: one
module alone, or everything together while the loss feels it. Formulas and limits: docs/alerts.md.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import FloatArray, largest_of
from gradwatch_server.core.judge.detector import FALL_SCALE, RING, SCALES, Detector
from gradwatch_server.core.judge.series import (
    FIRST_MODULE,
    LOSS_SERIES,
    PACE,
    TOTAL,
    FrameNumbers,
    SeriesMaker,
)

LN_3: Final = math.log(3.0)
LN_4: Final = math.log(4.0)
LN_6: Final = math.log(6.0)
LN_10: Final = math.log(10.0)

SUPPORTED: Final = 0.3
"""Part from which on a deviation of the loss adds to one of a norm."""

LOSS_FEELS: Final = 0.2
TOTAL_ADDS: Final = 0.4
CLEAR_PART: Final = 1.5
VERY_CLEAR_PART: Final = 2.0

LEAST_LOSS_RISE: Final = math.log(1.3)
LEAST_LOSS_DEVIATIONS: Final = 4.0
"""Rise of the mean loss of 16 or 64 frames that is enough, and deviations that are, too."""

OWN_SHARE: Final = 0.8
"""Share of what a module rises apart from the others that it has to rise itself."""

MATERIAL_RISE: Final = math.log(0.03)
MATERIAL_FALL: Final = math.log(0.003)
"""Logarithms of the share of the usual total from which on a module matters."""

MATERIAL_LOSS: Final = (0.25, 0.15, 0.04, 0.03)
"""(scales,) share of the first losses below which no loss matters."""

FIRST_LOSSES: Final = 16
SOLVED: Final = 0.1
"""Share of the first losses below which a task is solved."""

MIN_FRAMES: Final = 32
UNHEARD_FACTOR: Final = 4.0
UNHEARD_FRAMES: Final = 128
UNHEARD_AFTER: Final = 16
UNHEARD_DEVIATIONS: Final = 3.0
UNHEARD_RISE: Final = 0.04
"""A rate beyond anything before: how long it counts, the frames after which the loss is judged by
it, and the rise of the mean of 16 frames that is enough then, in deviations and in nats."""

CLIMB_FRAMES: Final = 128
"""Frames in which a rate that was far above all before explains what goes wrong."""

ROSE_FACTOR: Final = 1.5
ROSE_FRAMES: Final = 96
ROSE_PART: Final = 1.5
ROSE_RISE: Final = math.log(2.0)
"""Part of a total, and rise of a loss, from which on they are judged though the rate rose."""

SLOWER: Final = math.log(1.5)
"""Rise of the step time, nats, that a person should hear of."""

SLOW_SCALE: Final = 2
"""Index of the scale of 16 frames."""


class DeviationKind(StrEnum):
    """Kinds of deviation."""

    SPIKE = "spike"
    GROWTH = "growth"
    SHRINK = "shrink"
    TOTAL = "total"
    LOSS = "loss"
    COLLAPSE = "collapse"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Deviation:
    """One series that is beyond its record.

    Args:
        part: Excess over the record as a part of the margin.
        rise: Nats above the usual level, negative for a fall.
    """

    kind: DeviationKind
    series: int
    scale: int
    part: float
    rise: float
    is_paged: bool

    def quiet(self) -> Deviation:
        """Return the same, of which nobody is to hear."""
        return replace(self, is_paged=False)


@dataclass(slots=True)
class LearningRate:
    """Learning rates of the latest frames, and whether one is unlike them."""

    largest: float = 0.0
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=ROSE_FRAMES))
    num_frames: int = 0
    unheard_at: int | None = None
    climb_from: float = 0.0
    climb_step: int = 0
    """Largest rate before those that each were the largest so far, and the first step of these."""
    climb_began: int = 0
    climb_at: int = 0
    """Numbers of the first and of the latest frame with a rate above all before."""

    def update(self, frame: FrameNumbers) -> None:
        """Take in the rate of a frame; it may have risen at a step before without a frame."""
        lr = frame.lr
        self.num_frames += 1
        if math.isnan(lr):
            return
        if self.num_frames > MIN_FRAMES and lr > UNHEARD_FACTOR * self.largest > 0.0:
            self.unheard_at = self.num_frames
        if lr > self.largest:
            if (
                not self.latest
                or self.latest[-1] < self.largest
                or self.climb_at < self.num_frames - 1
            ):
                history = frame.history()
                step = None if history is None else history.first_rate_above(self.largest)
                self.climb_step = frame.step if step is None else step
                self.climb_from = self.largest
                self.climb_began = self.num_frames
            self.climb_at = self.num_frames
        self.largest = max(self.largest, lr)
        self.latest.append(lr)

    @property
    def climb(self) -> tuple[float, float, int] | None:
        """Rates before and after the latest climb far above all rates, and its first step.

        None if there is none in `CLIMB_FRAMES`; a warm-up is none.
        """
        is_new = self.num_frames - self.climb_at <= CLIMB_FRAMES and self.climb_began > MIN_FRAMES
        if not is_new or not self.largest > UNHEARD_FACTOR * self.climb_from > 0.0:
            return None
        return self.climb_from, self.largest, self.climb_step

    @property
    def unheard_frames(self) -> int:
        """Frames since the rate jumped beyond anything before, 0 if not in `UNHEARD_FRAMES`."""
        since = self.num_frames if self.unheard_at is None else self.unheard_at
        frames = self.num_frames - since
        return frames + 1 if self.unheard_at is not None and frames < UNHEARD_FRAMES else 0

    @property
    def rose(self) -> bool:
        """Tell whether the rate is well above the smallest of the last `ROSE_FRAMES`."""
        return bool(self.latest) and self.latest[-1] > ROSE_FACTOR * min(self.latest)


@dataclass(slots=True)
class DeviationFinder:
    """Deviations of one frame after another."""

    lr: LearningRate = field(default_factory=LearningRate)
    loss_sum: float = 0.0
    num_losses: int = 0
    """Sum and number of the first losses."""
    first_total: float = -math.inf
    """Logarithm of the largest norm of all modules in the first frames."""
    clear_totals: deque[bool] = field(default_factory=lambda: deque(maxlen=4))
    """Whether the total was clearly beyond its record, of the last four frames."""

    def find(self, frame: FrameNumbers, detector: Detector, maker: SeriesMaker) -> list[Deviation]:
        is_raw_loss = maker.is_raw_loss
        self._learn(frame, detector)
        up, down = detector.up, detector.down
        peaks = np.maximum.reduce(up)
        of_loss, of_total = max(0.0, peaks.item(LOSS_SERIES)), max(0.0, peaks.item(TOTAL))
        self.clear_totals.append(of_total > CLEAR_PART)
        is_unheard = self.lr.unheard_frames >= UNHEARD_AFTER and not is_raw_loss
        highest, lowest = largest_of(peaks), largest_of(down.ravel())
        if not is_unheard and highest + max(of_loss, TOTAL_ADDS) < 1.0 and lowest < 1.0:
            return []
        supported = np.where(up > SUPPORTED, up + of_loss, up)
        loss_parts = up[:, LOSS_SERIES]
        supported[:, LOSS_SERIES] = np.where(
            loss_parts > SUPPORTED, loss_parts + TOTAL_ADDS * min(of_total, 1.0), loss_parts
        )
        supported[:, PACE] = up[:, PACE]
        state = _FrameState(self, frame, detector, maker, of_total)
        up_places, down_places = np.argwhere(supported >= 1.0), np.argwhere(down >= 1.0)
        deviations = [state.rise(int(at[0]), int(at[1]), supported) for at in up_places]
        deviations += [state.fall(FALL_SCALE + int(at[0]), int(at[1])) for at in down_places]
        if is_unheard:
            deviations.append(state.after_unheard_rate())
        return [each for each in deviations if each is not None]

    def _learn(self, frame: FrameNumbers, detector: Detector) -> None:
        self.lr.update(frame)
        if detector.state.num_frames <= FIRST_LOSSES:
            self.first_total = float(np.fmax(self.first_total, detector.mean[0, TOTAL]))
        if self.num_losses < FIRST_LOSSES and math.isfinite(frame.loss):
            self.loss_sum += frame.loss
            self.num_losses += 1

    @property
    def first_loss(self) -> float:
        """Mean of the first losses; 0 without any."""
        return self.loss_sum / max(self.num_losses, 1)


class _FrameState:
    """Facts of one frame that decide whether a flag is paged."""

    def __init__(
        self,
        finder: DeviationFinder,
        frame: FrameNumbers,
        detector: Detector,
        maker: SeriesMaker,
        of_total: float,
    ) -> None:
        self._detector = detector
        self._finder = finder
        self._of_total = of_total
        self._is_raw_loss = maker.is_raw_loss
        self._loss_floor = float(maker.floor[LOSS_SERIES])
        self._has_loss = not math.isnan(frame.loss)
        rise = detector.rise[:, LOSS_SERIES]
        deviation = float(detector.deviation[LOSS_SERIES])
        self._loss_rise = rise
        self._is_better = bool(
            rise[SLOW_SCALE] < -deviation / 4.0 and rise[1] < max(1.5 * deviation, 0.1)
        )
        num_modules = (len(detector.deviation) - FIRST_MODULE) // 2
        self._is_single = num_modules == 1
        self._is_forgiven = self._is_hard_sample()

    def rise(self, scale: int, series: int, parts: FloatArray) -> Deviation | None:
        rise = float(self._detector.rise[scale, series])
        if series == LOSS_SERIES:
            kind, is_paged = DeviationKind.LOSS, self._is_loss_paged(scale, rise)
        elif series == PACE:
            kind, is_paged = DeviationKind.SLOW, scale >= SLOW_SCALE and rise > SLOWER
        elif series == TOTAL:
            part = float(self._detector.up[scale, series])
            kind, is_paged = DeviationKind.TOTAL, self._is_total_paged(series, rise, part)
        else:
            kind = DeviationKind.SPIKE if scale < SLOW_SCALE else DeviationKind.GROWTH
            is_paged = self._is_module_paged(scale, series, rise)
        if self._is_forgiven and series != PACE and not self._finder.lr.rose:
            is_paged = is_paged and not self._is_sudden(series, rise)
        return Deviation(kind, series, scale, float(parts[scale, series]), rise, is_paged)

    def fall(self, scale: int, series: int) -> Deviation | None:
        """Return the deviation of a series that fell; a loss or a step time that fell is none."""
        if series in (LOSS_SERIES, PACE):
            return None
        rise = float(self._detector.rise[scale, series])
        part = float(self._detector.down[scale - FALL_SCALE, series])
        if series == TOTAL:
            if scale != SLOW_SCALE:
                return None
            is_paged = rise < -LN_10 and self._fell_at_once(series, rise)
            return Deviation(DeviationKind.COLLAPSE, series, scale, part, rise, is_paged)
        if not _is_apart(series):
            return None
        apart = series - 1
        is_paged = (
            rise < -LN_6
            and float(self._detector.rise[scale, apart]) < -LN_6
            and not self._is_better
            and float(self._detector.mean[scale, apart] - self._detector.rise[scale, apart])
            > MATERIAL_FALL + self._usual_total
        )
        return Deviation(DeviationKind.SHRINK, series, scale, part, rise, is_paged)

    @property
    def _usual_total(self) -> float:
        return float(self._detector.state.level[TOTAL])

    def _is_module_paged(self, scale: int, series: int, rise: float) -> bool:
        if not _is_apart(series):
            return self._is_single
        level = float(self._detector.mean[scale, series - 1])
        if level <= MATERIAL_RISE + self._usual_total:
            return False
        # Where others fall, what stays where it was has risen apart from them.
        if not float(self._detector.rise[scale, series - 1]) > OWN_SHARE * rise:
            return False
        if scale >= SLOW_SCALE:
            return rise > LN_4 and (not self._is_better or rise > LN_10)
        is_sudden = scale == 0 and self._is_sudden(series, rise)
        return not self._is_better or rise > LN_10 or is_sudden

    def _is_total_paged(self, series: int, rise: float, part: float) -> bool:
        if self._finder.lr.rose and part < ROSE_PART:
            return False
        is_sudden = part > VERY_CLEAR_PART and self._is_sudden(series, rise)
        if self._is_better and not is_sudden and not rise > LN_10:
            return False
        is_felt = not self._has_loss or self._is_felt()
        return is_felt or sum(self._finder.clear_totals) >= 3

    def _is_loss_paged(self, scale: int, rise: float) -> bool:
        if self._finder.lr.rose and not self._finder.lr.unheard_frames and rise < ROSE_RISE:
            return False
        if self._is_raw_loss:
            return scale >= SLOW_SCALE and self._of_total > SUPPORTED
        if not self._is_material(scale):
            return False
        deviations = LEAST_LOSS_DEVIATIONS * float(self._detector.deviation[LOSS_SERIES])
        if scale >= SLOW_SCALE and rise < min(LEAST_LOSS_RISE, deviations):
            return False
        return scale > 0 or rise >= LN_3 or not self._loss_rise[SLOW_SCALE] < 0.0

    def after_unheard_rate(self) -> Deviation | None:
        """Return the deviation of a loss that rises after a learning rate beyond any before."""
        rise = float(self._loss_rise[SLOW_SCALE])
        usual = float(self._detector.rise_deviation[SLOW_SCALE, LOSS_SERIES])
        if not rise > max(UNHEARD_DEVIATIONS * usual, UNHEARD_RISE):
            return None
        is_paged = self._is_material(SLOW_SCALE)
        return Deviation(DeviationKind.LOSS, LOSS_SERIES, SLOW_SCALE, 1.0, rise, is_paged)

    def _is_felt(self) -> bool:
        """Tell whether a loss that matters is above its record by a part of its margin."""
        parts = self._detector.up[:, LOSS_SERIES]
        felt = np.flatnonzero(parts >= LOSS_FEELS).tolist()
        return any(self._is_raw_loss or self._is_material(scale) for scale in felt)

    def _is_hard_sample(self) -> bool:
        """Tell whether a task that was solved is, in this frame, as hard as at first at most."""
        finder, detector = self._finder, self._detector
        if self._is_raw_loss or not detector.mean[0, TOTAL] <= finder.first_total:
            return False
        loss = float(detector.mean[0, LOSS_SERIES])
        usual = math.exp(loss - float(self._loss_rise[0])) - self._loss_floor
        return usual < SOLVED * finder.first_loss and math.exp(loss) < finder.first_loss

    def _is_material(self, scale: int) -> bool:
        level = math.exp(float(self._detector.mean[scale, LOSS_SERIES]))
        return level > MATERIAL_LOSS[scale] * self._finder.first_loss

    def _is_sudden(self, series: int, rise: float) -> bool:
        """Tell whether the three frames before this one had less than half of the rise."""
        state = self._detector.state
        before = [(state.num_frames - back) % RING for back in (2, 3, 4)]
        earlier = [(each - 1) % RING for each in before]
        rises = state.samples[before, series] - state.levels[earlier, series]
        return float(np.median(rises)) < rise / 2.0

    def _fell_at_once(self, series: int, rise: float) -> bool:
        """Tell whether seven tenths of a fall came within four frames."""
        state = self._detector.state
        places = [(state.num_frames - back) % RING for back in range(SCALES[SLOW_SCALE] + 4, 0, -1)]
        samples = state.samples[places, series]
        return float((samples[4:] - samples[:-4]).min()) < 0.7 * rise


def _is_apart(series: int) -> bool:
    return series >= FIRST_MODULE and (series - FIRST_MODULE) % 2 == 1
