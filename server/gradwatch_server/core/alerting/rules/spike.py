"""Gradient norms that jump far above what they were."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.baselines.hits import Hits
from gradwatch_server.core.alerting.baselines.judgement import FIRST_MODULE, LOSS, TOTAL, Judgement
from gradwatch_server.core.alerting.baselines.reference import Reference
from gradwatch_server.core.alerting.baselines.running import PEAK_FRAMES
from gradwatch_server.core.alerting.baselines.visits import Visits
from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import Limit, Steps
from gradwatch_server.core.alerting.rules.loss_harm import is_harmed
from gradwatch_server.core.alerting.rules.module import layers_of
from gradwatch_server.core.alerting.rules.rising import RisingRule
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.health import Severity

LN_2: Final = 0.6931471805599453
LN_SEVERE: Final = 2.302585092994046
"""ln 10."""

LOSS_DEVIATIONS: Final = 3.0

_USUAL_MODULES: Final = 30
_GROWTH: Final = 0.12
"""How the factor at once grows with the number of modules beyond 30: more of them are more often
unusual by chance."""


class SpikeMemory:
    """Which series were far off lately, and what was usual when they began to be.

    Attributes:
        spike: (series,) whether the latest frame is a spike; not saved, as nobody asks again.
        severe: (series,) whether it stays far above the reference.
        away: (series,) whether it is above the reference.
    """

    def __init__(self) -> None:
        self.spike = self.severe = self.away = np.zeros(0, dtype=np.bool_)
        self._none = self.spike
        self._kept = {"half": Hits(), "lasting": Hits(), "severe": Hits()}
        self._reference = Reference()
        self._visits = Visits()
        self._rests = False  # whether one more calm frame changes nothing

    def hit(self, name: str, hit: BoolArray, least: int, frames: int) -> BoolArray:
        """Return what `Hits.add` does for one of the limits."""
        self._rests = False
        return self._kept[name].add(hit, least, frames)

    def follow_calm(self, number: int) -> BoolArray:
        """Take in a frame in which none of *number* series is far off; return that, (series,)."""
        if self._rests and len(self._none) == number:  # nearly always
            return self._none
        if len(self._none) != number:
            self._none = np.zeros(number, dtype=np.bool_)
            self._none.flags.writeable = False
        for name in self._kept:
            self.hit(name, self._none, 1, 8)
        self._reference.fit(number)
        self._visits.rest(number)
        self.spike = self.severe = self.away = self._none
        self._rests = self._visits.is_empty and all(own.is_empty for own in self._kept.values())
        return self._none

    @property
    def any_away(self) -> bool:
        """Whether any series is above its reference."""
        return self._reference.any_away

    def follow(self, judgement: Judgement, spike: BoolArray, half: BoolArray, back: float) -> None:
        """Take in what a frame comes to; *back* is the logarithm of the ratio that is calm."""
        self.away = self._reference.follow(judgement, half, back)
        again = self._visits.follow(judgement, self.away)
        self.spike = spike & ~again
        far = self.away
        if np.count_nonzero(far):
            far = (self._reference.rise(judgement) > LN_SEVERE) & ~again
        self.severe = self.hit("severe", far, 4, 8)

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        kept = {name: hits.state_dict() for name, hits in self._kept.items()}
        visits = {"visits": self._visits.state_dict()}
        return kept | visits | {"reference": self._reference.state_dict()}

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        for name, hits in self._kept.items():
            hits.load_state_dict(plain[name])
        self._reference.load_state_dict(plain["reference"])
        self._visits.load_state_dict(plain["visits"])
        self._rests = False


class SpikeRule(RisingRule):
    """A module's gradient norm far above what is usual of it.

    A module is the layers that share a name up to the last dot, and its norm is that of all of them
    together. Norms are judged by their logarithm against running statistics that one outlier hardly
    moves. It is a spike where the norm is, after 32 frames,

    * **at once**: more than `factor` times the largest of the last 256 frames (the factor grows
      slowly with the number of modules beyond 30), or
    * **lasting**: in 3 of 4 frames more than `ratio` times the usual and `deviations` usual
      deviations above it, or
    * **with the loss**: the same with one deviation more in one frame, where the loss is more than
      3 deviations above its own usual.

    The last two count after 256 frames: before, what is usual is still being found. Half of any of
    them is a finding of severity `info`, which is kept and shown. It becomes a warning where the
    mean of the loss over 16 frames has left its level as well (4 standard errors, see `loss`).

    What came and went within 32 frames by itself, in the last 1,024, is `info` when it comes again
    no more than twice as large: a copy of a target network, a short last batch. Otherwise a spike
    is critical when in 4 of 8 frames the norm is 10 times what was usual before it began.

    Its origin is the module in which it began: the only one that rises, or the one that rose before
    all others, or whose rise is three times that of any other on a logarithmic scale; inside it the
    layer that is farthest above its usual norm. Where several jump at once it is not known, and
    `layer` is null; value and `detail` are of the one that is farthest off. `step` is where the
    norm left its level, with how sure that is, or the step of the jump.

    It is over when the norm is within twice what was usual when it began, or after 256 frames at
    the new level, which is what is usual by then.
    """

    name = "spike"
    follows = ("nonfinite", "exploding", "rank_divergence", "loss")
    yields_to = ("exploding",)
    formula = """
        with x the natural logarithm of a module's norm, of the module or the total:
        `x - max256 > ln factor(M)`, or in 3 of 4 frames `x - mean > max(ln ratio, deviations * s)`,
        or in one frame the same with `deviations + 1` and a loss with z > 3; `factor(M)` is
        `factor * max(1, M / 30)^0.12` for M modules, mean and s are exponentially weighted with
        0.03, of samples that count 3 s at most; s is at least 0.1.
    """
    tuning = """
        `ratio` should not go below 3: short last batches come close to it. Raise `factor` where
        single large steps are normal (batch size 1, a nearly solved task). To hear of less, leave
        `spike` as it is and act on `warning` or worse.
    """
    source = """
        Two conditions at once, a ratio and a distance in deviations, as neither alone works.
        `scripts/bench alerts` judges it on recorded trainings, beside OLMo-core's 6 standard
        deviations, ZClip's z of 2.5 and Megatron's factor 10.
    """

    factor: Limit = Field(4.0, description="Times the largest of the last 256 frames, at once.")
    ratio: Limit = Field(3.0, description="Times the usual norm, where it lasts.")
    deviations: Limit = Field(4.0, description="Usual deviations above it, where it lasts.")
    clear_ratio: Limit = Field(
        2.0, description="Times the usual at the beginning, at or below which it is calm again."
    )
    clear_steps: Steps = Field(
        16, description="Consecutive frames that must be good before a firing alert is resolved."
    )

    def memory(self) -> SpikeMemory:
        """Return a new memory."""
        return SpikeMemory()

    def raised_modules(self, frame: Frame, judgement: Judgement, context: Context) -> BoolArray:
        """Return the modules that are a spike or half of one, (modules,)."""
        memory = self._memory(context)
        if not memory.any_away and self._is_calm(judgement):  # nearly always
            return memory.follow_calm(len(judgement.samples))[FIRST_MODULE:]
        spike = self._spike(judgement, memory)
        half = spike | self._half(judgement, memory)
        spike[LOSS] = half[LOSS] = False
        memory.follow(judgement, spike, half, math.log(self.clear_ratio))
        return _modules(half, judgement)

    def held_layers(self, frame: Frame, context: Context) -> BoolArray:
        """Return the layers of modules above what was usual when they began to be, (layers,)."""
        judgement = context.judge(frame)
        return layers_of(judgement, _modules(self._memory(context).away, judgement), frame)

    def severity_in(
        self, frame: Frame, context: Context, raised: BoolArray, in_a_row: int
    ) -> Severity:
        """Return `info` for half a spike, and critical where it stays far above."""
        memory, modules = self._memory(context), context.baselines.modules
        own = modules.any_of(raised)
        if (_own(memory.severe, own)).any():
            return Severity.CRITICAL
        is_spike = _own(memory.spike, own).any() or is_harmed(context.judge(frame))
        return self.severity if is_spike else Severity.INFO

    def describe(self, origin: Origin) -> str:
        """Return what is wrong in a few words."""
        return f"gradient norm of {self.subject(origin)} is {jump(origin)}{self.since(origin)}"

    def _is_calm(self, judgement: Judgement) -> bool:
        """Tell whether no series is beyond even the least of the limits."""
        least_rise = min(LN_2, math.log(self.ratio))
        least_over_peak = min(LN_2, math.log(self.factor))
        rise, over_peak = judgement.highest
        if rise <= least_rise and over_peak <= least_over_peak:  # nearly always
            return True
        far = judgement.over_peak > least_over_peak
        limit = self.deviations * judgement.deviation
        np.maximum(limit, least_rise, out=limit)
        far |= judgement.rise > limit
        far &= judgement.is_known
        return not np.count_nonzero(far)

    def _spike(self, judgement: Judgement, memory: SpikeMemory) -> BoolArray:
        known, rise, deviation = judgement.is_known, judgement.rise, judgement.deviation
        modules = max(1.0, judgement.num_modules / _USUAL_MODULES)
        at_once = judgement.over_peak > math.log(self.factor * modules**_GROWTH)
        large = known & (rise > np.maximum(math.log(self.ratio), self.deviations * deviation))
        large &= judgement.count >= PEAK_FRAMES  # before, what is usual is still being found
        with_loss = large & (rise > (self.deviations + 1.0) * deviation)
        if not _loss_jumped(judgement):
            with_loss[:] = False
        return (known & at_once) | memory.hit("lasting", large, 3, 4) | with_loss

    def _half(self, judgement: Judgement, memory: SpikeMemory) -> BoolArray:
        known, rise = judgement.is_known, judgement.rise
        large = known & (rise > np.maximum(LN_2, self.deviations * judgement.deviation))
        return (known & (judgement.over_peak > LN_2)) | memory.hit("half", large, 2, 3)

    def _memory(self, context: Context) -> SpikeMemory:
        memory = context.memory(self.name)
        assert isinstance(memory, SpikeMemory)  # noqa: S101 - for the type checker
        return memory


def jump(origin: Origin) -> str:
    """Return the value, and how it compares with what was usual, for a message."""
    if not origin.usual:
        return f"{origin.value:.3g}, without a history"
    ratio = origin.value / origin.usual
    return f"{origin.value:.3g}, {ratio:.3g} times the usual {origin.usual:.3g}"


def _loss_jumped(judgement: Judgement) -> bool:
    return bool(judgement.is_known[LOSS] and judgement.z[LOSS] > LOSS_DEVIATIONS)


def _own(series: BoolArray, modules: BoolArray) -> BoolArray:
    """Return the flags of some modules; the total's belongs to each of them."""
    if not len(series):
        return series
    return np.append(series[FIRST_MODULE:][modules[: len(series) - FIRST_MODULE]], series[TOTAL])


def _modules(flagged: BoolArray, judgement: Judgement) -> BoolArray:
    """Return the flagged modules; where only the total is, those that grew with it."""
    modules: BoolArray = flagged[FIRST_MODULE:]
    if len(flagged) and flagged[TOTAL] and not modules.any():
        rise = judgement.rise[FIRST_MODULE:]
        modules = np.nan_to_num(rise, nan=-np.inf) > 0.5 * judgement.rise[TOTAL]
    return modules
