"""The level of the loss: whether the mean of the last frames is above what noise explains."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from gradwatch_server.core.alerting.baselines.rates import RateChange, Rates
from gradwatch_server.core.alerting.baselines.running import PEAK_FRAMES, WINSOR

Usual: TypeAlias = tuple[float, float]
"""Mean and deviation."""

LEVEL_FRAMES: Final = 16
"""Frames of a level. Twice as many see half as small a rise, and twice as late."""

RISE_FRAMES: Final = 1_024
"""Frames by which it is known how far levels rise by themselves: levels that share samples are
alike, and these are 64 that do not."""

LARGER: Final = 1.5
"""Times the largest of these rises that another one has to be, at 5 standard errors."""

MIN_LEVELS: Final = 32
"""Before so many levels are known, none is called high."""

UNHEARD_OF_SHARE: Final = 0.6
"""Share of a limit that is enough where the learning rate is known to be what it never was."""

_SQRT_FRAMES: Final = math.sqrt(LEVEL_FRAMES)
_LEAST: Final = 1.5
"""Standard errors below which nobody asks, whatever the learning rate did."""


@dataclass(frozen=True, slots=True)
class LossRise:
    """How far the loss is above its level, in all of the last 16 frames together.

    Args:
        errors: Mean of the last 16 samples less what was usual before them, in standard errors of
            such a mean: a fourth of the usual deviation, or how far such means were above what was
            usual before them if that is more. 0 where it is no higher than each of the 256 frames
            before.
        level: That mean.
        usual: What was usual before them.
        rate: What the learning rate did of late.
        samples: (step, deviations above the usual) of each, oldest first.
    """

    errors: float
    level: float
    usual: float
    rate: RateChange
    samples: tuple[tuple[int, float], ...]

    def exceeds(self, errors: float) -> bool:
        """Tell whether the loss rose by more than so many standard errors and should not have.

        Six tenths of it are enough where the learning rate is one that the training never had, as
        that is known to do it. Where the rate rose as schedules do, the loss goes with it: none is.
        """
        if self.rate is RateChange.ROSE:
            return False
        share = UNHEARD_OF_SHARE if self.rate is RateChange.UNHEARD_OF else 1.0
        return self.errors > share * errors

    @property
    def began(self) -> int:
        """The step from which on the samples are most unlike what was usual before.

        The most likely place of a change from a known mean to an unknown one: where the sum of what
        follows is largest beside the root of its number.
        """
        best, began, total = -math.inf, self.samples[-1][0], 0.0
        for number, (step, distance) in enumerate(reversed(self.samples), start=1):
            total += distance
            if total / math.sqrt(number) > best:
                best, began = total / math.sqrt(number), step
        return began


NO_RISE: Final = LossRise(0.0, 0.0, 0.0, RateChange.NONE, ())


class LossLevel:
    """Means of the last 16 logarithms of the loss, beside what they were.

    Samples count at most 3 usual deviations from the mean, so that no single one makes a level.
    """

    def __init__(self) -> None:
        self.rates = Rates()
        self.clear()

    def clear(self) -> None:
        """Forget the losses."""
        # Of the frames that make a level with the next one.
        self._steps: deque[int] = deque(maxlen=LEVEL_FRAMES - 1)
        self._samples: deque[float] = deque(maxlen=LEVEL_FRAMES - 1)
        # What was usual before each of them, as mean and deviation; None before that was known.
        self._usual: deque[Usual | None] = deque(maxlen=LEVEL_FRAMES - 1)
        self._levels: deque[float] = deque(maxlen=PEAK_FRAMES + LEVEL_FRAMES - 1)
        # Each less what was usual before it.
        self._rises: deque[float] = deque(maxlen=RISE_FRAMES + LEVEL_FRAMES - 1)

    def rise(self, step: int, sample: float, usual: Usual | None, lr: float | None) -> LossRise:
        """Return how far the loss is above its level in a frame that is not yet added.

        Args:
            step: Its step.
            sample: The logarithm of its loss, NaN if it says nothing.
            usual: Mean and deviation before it, None if they are not known.
            lr: Its learning rate, None if it does not say.
        """
        if len(self._rises) < MIN_LEVELS + LEVEL_FRAMES - 1 or math.isnan(sample):
            return NO_RISE
        before = self._usual[0]
        if before is None:
            return NO_RISE
        mean, deviation = before
        last = _winsorised(sample, usual)
        level = (math.fsum(self._samples) + last) / LEVEL_FRAMES
        error = deviation / _SQRT_FRAMES
        if level - mean < _LEAST * error:  # nearly always
            return NO_RISE
        levels = list(self._levels)[: 1 - LEVEL_FRAMES]
        if level <= max(levels):
            return NO_RISE
        errors = (level - mean) / max(error, _scatter(list(self._rises)[: 1 - LEVEL_FRAMES]))
        numbers = zip((*self._steps, step), (*self._samples, last), strict=True)
        return LossRise(
            errors=errors,
            level=level,
            usual=mean,
            rate=self.rates.change(lr),
            samples=tuple((at, (own - mean) / deviation) for at, own in numbers),
        )

    def add(self, step: int, sample: float, usual: Usual | None, lr: float | None) -> None:
        """Take in a frame, as `rise` says."""
        self.rates.add(lr)
        if math.isnan(sample):
            return
        sample = _winsorised(sample, usual)
        if len(self._samples) == LEVEL_FRAMES - 1:
            level = (math.fsum(self._samples) + sample) / LEVEL_FRAMES
            self._levels.append(level)
            if (before := self._usual[0]) is not None:
                self._rises.append(level - before[0])
        self._steps.append(step)
        self._samples.append(sample)
        self._usual.append(usual)

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {
            "rates": self.rates.state_dict(),
            "steps": list(self._steps),
            "samples": list(self._samples),
            "usual": [None if each is None else list(each) for each in self._usual],
            "levels": list(self._levels),
            "rises": list(self._rises),
        }

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        self.clear()
        self.rates.load_state_dict(plain["rates"])
        self._steps.extend(plain["steps"])
        self._samples.extend(plain["samples"])
        self._usual.extend(None if each is None else (each[0], each[1]) for each in plain["usual"])
        self._levels.extend(plain["levels"])
        self._rises.extend(plain["rises"])


def _scatter(rises: Sequence[float]) -> float:
    """Return how far levels are above what was usual before them, as a standard deviation.

    Where the loss of a step depends on that before it, they scatter by more than the deviation of
    the steps says, and now and then by much more. Those below say nothing: a loss falls as long as
    something is learned.
    """
    above = [rise for rise in rises if rise > 0.0]
    if not above:
        return 0.0
    deviation = math.sqrt(2.0 * math.fsum(rise * rise for rise in above) / len(rises))
    return max(deviation, LARGER / 5.0 * max(above))


def _winsorised(sample: float, usual: Usual | None) -> float:
    if usual is None:
        return sample
    mean, deviation = usual
    most = WINSOR * deviation
    return min(max(sample, mean - most), mean + most)
