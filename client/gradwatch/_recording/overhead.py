"""The budget of a watch: the share of the training's time that measuring may take.

The cost of a measured step does not depend on how often one is measured. So both are timed, the
cost and the step, and the pace follows from them. What a watch times inside of itself leaves out
the caches that it takes from the training: steps between two measured ones are the control group
that shows the true cost.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

MOST_STEPS: Final = 512
"""Steps between two that are measured in full, at most; a power of two."""

MOST_S: Final = 30.0
"""Seconds between the same, at most."""

PAIR_EVERY: Final = 16
"""From this many steps on two in a row are measured: the second one shows a sudden change."""

MOST_SLICES: Final = 8
"""Parts of the model that a sentinel reads in turn, at most."""

_DECIDE_EVERY_S: Final = 0.5
_SAMPLES: Final = 15
_NEW_SAMPLES: Final = 6
"""Measured steps between two decisions, which are else made from the same times."""

_MIN_CONTROLS: Final = 5
_REST_S: Final = 8e-6
"""Cost of a step that is only counted, timed in a training of 0.4 ms: a dozen calls of Python."""

_PROBE_S: Final = 7e-6
"""Cost of looking at one small gradient in such a step, likewise."""

_FIRST_FOLLOW_S: Final = 40e-6
"""Cost of following a step before one was timed, measured on a small model; it grows with none."""

_FIRST_FACTOR: Final = 1.3
_RESOLVED: Final = 2.0
"""Spread of steps, in costs of a measurement, above which they do not show that cost: the error of
a median of `_SAMPLES` is a quarter of the distance between their quartiles."""

_MOST_FACTOR: Final = 3.0
_SENTINEL_PART: Final = 0.7
"""Part of the budget that following and a sentinel may take: the rest is for measurements."""

_TOO_MUCH: Final = 1.1
_LITTLE: Final = 0.7
_AGREEING: Final = 3


@dataclass(frozen=True, slots=True)
class Pace:
    """Closeness of the look at a training's steps.

    Args:
        every: Steps from one that is measured in full to the next.
        slices: Parts of the model that a sentinel reads in turn in the others, 0 without one.
        rests: Whether the others are only counted.
        probes: Whether one gradient of those is looked at for NaN and Inf.
    """

    every: int = 1
    slices: int = 0
    rests: bool = False
    probes: bool = False


class Overhead:
    """Decides about the pace from what steps took. It has no clock.

    Args:
        looks_always: Whether a sentinel reads everything in each step, whatever it costs.
    """

    def __init__(self, share: float, *, looks_always: bool = False) -> None:
        self._share = share
        self._looks_always = looks_always
        self._full_s = _Times()  # cost of a step that is measured in full
        self._light_s = _Times()  # cost of one that is followed, and not measured
        self._beside_s = _Times()  # the same with what a sentinel has read of it
        self._look_s = _Times()  # cost of a sentinel that reads everything
        self._wake_s = _Times()
        # What the sender's thread takes for a record: it holds the interpreter meanwhile.
        self._record_s = 0.0
        self._full_steps_s = _Times()  # how long such steps take, with that
        self._light_steps_s = _Times()
        self._rest_steps_s = _Times()
        self._factor = _FIRST_FACTOR
        self._decided_at_s = float("-inf")
        self._num_new = 0  # samples since then
        self._wish: Pace | None = None
        self._num_wishes = 0
        self.pace = Pace()

    def add_full(self, step_s: float | None, own_s: float) -> None:
        """Note a step that was measured in full.

        Args:
            step_s: How long it took, None if that is not known.
            own_s: How much of that the watch took, as far as it can time itself.
        """
        self._full_s.add(own_s)
        self._num_new += 1
        if step_s is not None:
            self._full_steps_s.add(step_s)

    def add_light(self, step_s: float | None, own_s: float, look_s: float) -> None:
        """Note a step that was followed and not measured; see `add_full`.

        Args:
            step_s: How long it took.
            own_s: How much of that following took.
            look_s: How much of it the sentinel took.
        """
        self._light_s.add(own_s)
        self._beside_s.add(own_s + look_s)
        if step_s is not None:
            self._light_steps_s.add(step_s)

    def add_look(self, own_s: float) -> None:
        self._look_s.add(own_s)

    def note_record(self, record_s: float) -> None:
        """Note how long the sender takes for a record, in its own thread."""
        self._record_s = record_s

    def add_rest(self, steps_s: list[float], wake_s: float) -> None:
        """Note how long some steps took that were only counted, and the waking after them."""
        for step_s in steps_s:
            self._rest_steps_s.add(step_s)
        self._wake_s.add(wake_s)

    def decide(self, now_s: float, *, may_rest: bool) -> Pace:
        """Return the pace from here on: rarer at once, more often when several decisions agree."""
        is_broken = self.pace.rests and not may_rest
        is_early = now_s - self._decided_at_s < _DECIDE_EVERY_S or self._num_new < _NEW_SAMPLES
        if is_early and not is_broken:
            return self.pace
        is_first = self._decided_at_s == float("-inf")
        self._decided_at_s, self._num_new = now_s, 0
        self._correct()
        wish = self._choose(self._share, may_rest=may_rest)
        if is_first or is_broken:
            self.pace = wish
            return wish
        if self.share_of(self.pace) > self._share * _TOO_MUCH:
            needed = 1 if self.share_of(self.pace) > 2.0 * self._share else 2
            return self._adopt(wish, needed)
        wish = self._choose(self._share * _LITTLE, may_rest=may_rest)
        if self.share_of(wish) > self.share_of(self.pace):
            return self._adopt(wish, _AGREEING)
        self._wish = None
        return self.pace

    def share_of(self, pace: Pace) -> float:
        """Return the share of the training's time that a pace takes, as estimated."""
        step_s = self.step_s
        cost_s = self._base_s(pace) + self._cycle_s(pace) / pace.every
        return cost_s / step_s if step_s > 0.0 else 0.0

    @property
    def step_s(self) -> float:
        """Seconds of a step without the watch, as estimated."""
        if len(self._rest_steps_s) >= _MIN_CONTROLS:
            return max(self._rest_steps_s.median - _REST_S, 0.0)
        if len(self._light_steps_s) >= _MIN_CONTROLS:
            return max(self._light_steps_s.median - self._beside_s.median * self._factor, 0.0)
        return max(self._full_steps_s.median - self._full_s.median, 0.0)

    def _adopt(self, wish: Pace, needed: int) -> Pace:
        self._num_wishes = self._num_wishes + 1 if wish == self._wish else 1
        self._wish = wish
        if self._num_wishes >= needed:
            self.pace, self._wish = wish, None
        return self.pace

    def _correct(self) -> None:
        """Compare full steps with the others, slowly: what is timed inside leaves out caches."""
        controls = self._rest_steps_s if len(self._rest_steps_s) else self._light_steps_s
        if min(len(controls), len(self._full_steps_s)) < _MIN_CONTROLS:
            return
        own_s = self._full_s.median
        if self._full_steps_s.spread + controls.spread > _RESOLVED * own_s:
            return
        beside_s = _REST_S if controls is self._rest_steps_s else self._beside_s.median
        true_s = self._full_steps_s.median - controls.median + beside_s
        factor = min(max(true_s / own_s, 1.0), _MOST_FACTOR) if own_s > 0.0 else 1.0
        self._factor += (factor - self._factor) / 4

    def _base_s(self, pace: Pace) -> float:
        """Return what each step costs that is not measured in full."""
        if pace.rests:
            return _REST_S + _PROBE_S * pace.probes
        if pace.every == 1:
            return 0.0
        look_s = self._look_s.median / pace.slices if pace.slices else 0.0
        return (self._follow_s + look_s) * self._factor

    @property
    def _follow_s(self) -> float:
        if len(self._light_s):
            return self._light_s.median
        return _FIRST_FOLLOW_S

    def _cycle_s(self, pace: Pace) -> float:
        """Return what the full measurements from one waking to the next cost."""
        count = 2 if pace.rests and pace.every >= PAIR_EVERY else 1
        waking_s = self._wake_s.median if pace.rests else 0.0
        return waking_s + count * (self._full_s.median * self._factor + self._record_s)

    def _choose(self, share: float, *, may_rest: bool) -> Pace:
        """Return the closest pace within a share: a sentinel if it can be had, else sleep."""
        step_s = self.step_s
        budget_s = share * step_s
        if not step_s or self._cycle_s(Pace()) <= budget_s:
            return Pace()
        most = MOST_STEPS
        while most > 2 and most * step_s > MOST_S:
            most //= 2
        if self._looks_always:
            return self._fit(Pace(most, slices=1), budget_s)
        slices = 1
        while slices <= MOST_SLICES and len(self._look_s):
            pace = Pace(most, slices)
            if self._base_s(pace) <= _SENTINEL_PART * budget_s:
                return self._fit(pace, budget_s)
            slices *= 2
        probing = Pace(most, rests=True, probes=True)
        if may_rest and self._base_s(probing) <= _SENTINEL_PART * budget_s:
            return self._fit(probing, budget_s)
        return self._fit(Pace(most, rests=may_rest), budget_s)

    def _fit(self, pace: Pace, budget_s: float) -> Pace:
        """Return the same pace with full measurements as often as the budget allows."""
        every = 2
        while every < pace.every:
            closer = replace(pace, every=every)
            if self._base_s(closer) + self._cycle_s(closer) / every <= budget_s:
                return closer
            every *= 2
        return pace


class _Times:
    """The latest times of one kind, in seconds."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_SAMPLES)
        self._median: float | None = 0.0

    def __len__(self) -> int:
        return len(self._times)

    def add(self, seconds: float) -> None:
        self._times.append(seconds)
        self._median = None

    @property
    def spread(self) -> float:
        """Distance between the quartiles."""
        times = sorted(self._times)
        return times[3 * len(times) // 4] - times[len(times) // 4]

    @property
    def median(self) -> float:
        if self._median is None:
            self._median = median(self._times)
        return self._median
