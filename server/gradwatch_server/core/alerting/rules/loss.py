"""A loss that is not finite, or far above what it was."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.attribution import high_loss_ranks, nonfinite_ranks, ranks_of
from gradwatch_server.core.alerting.baselines.hits import Hits
from gradwatch_server.core.alerting.baselines.judgement import LOSS, Judgement
from gradwatch_server.core.alerting.baselines.loss_level import LEVEL_FRAMES, LossRise
from gradwatch_server.core.alerting.baselines.rates import UNHEARD_OF, RateChange
from gradwatch_server.core.alerting.baselines.reference import Reference
from gradwatch_server.core.alerting.baselines.running import PEAK_FRAMES
from gradwatch_server.core.alerting.evaluation import Context, Evaluation, Verdict
from gradwatch_server.core.alerting.origin import Origin, one_rank
from gradwatch_server.core.alerting.rules.base import Limit, Rule, Steps
from gradwatch_server.core.alerting.rules.module import usual_loss
from gradwatch_server.core.alerting.rules.spike import jump
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.health import Severity, nonfinite_kind

GROUP = "loss"
"""The group of its alerts."""

LEVEL_NOTE: Final = f"no step alone, but {LEVEL_FRAMES} together; deviations are standard errors"

RATE_NOTE: Final = f"the learning rate is more than {UNHEARD_OF:g} times any before"

_CALM: Final = np.zeros(1, dtype=np.bool_)
_CALM.flags.writeable = False


class LossMemory:
    """How often the loss was high lately, and what was usual when it began to be.

    Attributes:
        reference: What was usual when it left it.
        away_frames: Frames in a row at twice that or more.
        rises: Whether the level of the latest frame is news; not saved.
    """

    def __init__(self) -> None:
        self._hits = Hits()
        self._rest = 0  # frames in which a level that stays high is no news
        self.reference = Reference()
        self.away_frames = 0
        self.rises = False

    def add(self, *, high: bool, least: int, frames: int) -> bool:
        """Take in a frame; return whether it is the last of enough."""
        return bool(self._hits.add(np.array([high]) if high else _CALM, least, frames)[0])

    def follow_level(self, *, high: bool) -> bool:
        """Take in whether the level is high; return whether that is news.

        It is told once: as long as levels are compared with those before, it would be again.
        """
        self.rises = high and not self._rest
        self._rest = PEAK_FRAMES if self.rises else max(0, self._rest - 1)
        return self.rises

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {
            "rest": self._rest,
            "hits": self._hits.state_dict(),
            "reference": self.reference.state_dict(),
            "away_frames": self.away_frames,
        }

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        self._hits.load_state_dict(plain["hits"])
        self.reference.load_state_dict(plain["reference"])
        self.away_frames, self._rest = plain["away_frames"], plain["rest"]


class LossRule(Rule):
    """A loss that is NaN or Inf, or stays far above what is usual of it.

    It is about the run: its alert has the group `loss` and no layers. While every loss so far was
    positive, its logarithm is judged: in 2 of 3 frames more than `ratio` times the usual and
    `deviations` usual deviations above it, after 32 frames. A loss that was zero or negative is
    judged as it is: one deviation more, in 3 of 4 frames.

    A small rise that lasts is told as well, of a loss that was always positive: the mean of 16
    frames above each such mean of the 256 frames before, and `standard_errors` standard errors
    above what was usual. Its origin is the step from which on the loss is most unlike what it was.
    It is told once in 256 frames. A loss that rose by itself before, within 1,024 frames, has to
    rise by half more. Where the learning rate has risen by half or more within these frames, as
    after a restart, in a warm-up or by hand, the loss goes with it and nothing is told; but where
    the rate is more than 4 times the largest that this training ever had before the last 128
    frames, six tenths of the standard errors are enough.

    A loss that is not finite is critical at once. Where gradients are not finite in the same step,
    the rule `nonfinite` tells of both, and this one is silent.
    """

    name = "loss"
    follows = (
        "nonfinite",
        "exploding",
        "spike",
        "dead_layer",
        "vanishing",
        "rank_divergence",
        "drift",
    )
    takes = (Frame,)
    formula = """
        with x the natural logarithm of the loss: `x - mean > max(ln ratio, deviations * s)` in 2 of
        3 frames; of a loss that was not positive, `loss - mean > (deviations + 1) * s` in 3 of 4.
        Mean and s as in `spike`. Of 16 frames together: with X the mean of x, each cut at 3 s,
        `X - mean > standard_errors * e` and X above the largest of 256 frames; mean as it was
        before them, and e the largest of `s / 4`, the deviation of X from its mean upwards, and 0.3
        times the farthest it went, in 1,024 frames.
    """
    tuning = """
        Raise `ratio` where the loss of single batches differs much, and give `attach` the mean over
        more samples if you have it. Raise `standard_errors` where the task itself becomes harder by
        a little, such as with a curriculum. Log the learning rate: the rule goes by it.
    """
    source = """
        Measured with `spike`, on the same steps. That small rises are judged over several frames is
        Page's (1954) idea; 5 standard errors are what physics asks for a discovery: the mean of 16
        healthy frames came to 3.9 at most on the runs to tune on. The step is the most likely one
        of a change of the mean (Hinkley 1970).
    """

    ratio: Limit = Field(1.5, description="Times the usual loss, where every loss was positive.")
    deviations: Limit = Field(5.0, description="Usual deviations above it.")
    standard_errors: Limit = Field(
        5.0, description="Standard errors above the usual, of the mean of 16 frames."
    )
    critical_steps: Steps = Field(
        32, description="Frames at twice the usual or more after which it is critical."
    )
    clear_steps: Steps = Field(
        16, description="Consecutive frames that must be good before a firing alert is resolved."
    )

    def memory(self) -> LossMemory:
        """Return a new memory."""
        return LossMemory()

    def raised(self, observation: Frame, context: Context) -> BoolArray | None:
        """Return whether the loss is too high, (1,)."""
        judgement, memory = context.judge(observation), self._memory(context)
        loss = observation.loss
        if loss is not None and nonfinite_kind(loss) is not None:
            return np.array([not observation.nonfinite.any()])
        rise = float(judgement.samples[LOSS]) - float(judgement.mean[LOSS])
        deviation = float(judgement.deviation[LOSS])
        if judgement.is_log_loss:
            limit, least, frames = max(math.log(self.ratio), self.deviations * deviation), 2, 3
        else:
            limit, least, frames = (self.deviations + 1.0) * deviation, 3, 4
        high = bool(judgement.is_known[LOSS]) and rise > limit
        rises = memory.follow_level(high=judgement.loss_rise.exceeds(self.standard_errors))
        raised = memory.add(high=high, least=least, frames=frames) or rises
        if not raised and not memory.reference.any_away:  # nearly always
            memory.reference.fit(len(judgement.samples))
            memory.away_frames = 0
            return _CALM
        flags = np.zeros(len(judgement.samples), dtype=np.bool_)
        flags[LOSS] = raised
        usual = np.where(flags, judgement.loss_rise.usual, judgement.mean) if rises else None
        memory.reference.follow(judgement, flags, 2.0 * deviation, usual)
        away = float(memory.reference.rise(judgement)[LOSS])
        double = math.log(2.0) if judgement.is_log_loss else limit
        memory.away_frames = memory.away_frames + 1 if away > double else 0
        return np.array([raised])

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        """Yield the one evaluation of the loss of a step."""
        judgement, memory = context.judge(observation), self._memory(context)
        away = not math.isnan(memory.reference.rise(judgement)[LOSS])
        away |= judgement.loss_rise.exceeds(self.standard_errors)
        is_bad = observation.loss is not None and not math.isfinite(observation.loss)
        severe = is_bad or memory.away_frames >= self.critical_steps
        yield Evaluation(
            group=GROUP,
            step=observation.step,
            received_ns=observation.received_ns,
            verdict=Verdict.of_run(
                raised=bool(raised.any()),
                held=bool(raised.any()) or away or is_bad,
                seen=observation.loss is not None,
            ),
            names=(),
            origin=lambda _: self.origin(observation, context),
            severity=lambda _: Severity.CRITICAL if severe else self.severity,
            is_alone=is_bad and not observation.nonfinite.any(),
        )

    def origin(self, frame: Frame, context: Context) -> Origin:
        """Return the step, and the ranks whose loss was not finite where it is that."""
        judgement = context.judge(frame)
        if self._memory(context).rises:
            return _level_origin(frame, judgement.loss_rise)
        loss = math.nan if frame.loss is None else frame.loss
        kind = nonfinite_kind(loss)
        ranks = nonfinite_ranks(frame) if kind else self._high_ranks(frame, judgement)
        known = bool(judgement.is_known[LOSS])
        usual = float(judgement.mean[LOSS])
        return Origin(
            step=frame.step,
            rank=one_rank(ranks),
            ranks=ranks,
            layer=None,
            kind=kind,
            value=loss,
            threshold=None,
            usual=(math.exp(usual) if judgement.is_log_loss else usual) if known else None,
            deviations=float(judgement.z[LOSS]) if known and kind is None else None,
        )

    def _high_ranks(self, frame: Frame, judgement: Judgement) -> tuple[int, ...]:
        """Return the rank whose loss is high, all if none stands out."""
        return high_loss_ranks(frame, usual_loss(judgement)) or ranks_of(frame.parts)

    def describe(self, origin: Origin) -> str:
        """Return what is wrong in a few words."""
        if origin.kind is not None:
            return f"the loss is {'NaN' if origin.kind == 'nan' else 'Inf'}, the gradients finite"
        if LEVEL_NOTE in origin.notes:
            return f"mean loss of {LEVEL_FRAMES} frames is {jump(origin)}"
        return f"loss {jump(origin)}"

    def _memory(self, context: Context) -> LossMemory:
        memory = context.memory(self.name)
        assert isinstance(memory, LossMemory)  # noqa: S101 - for the type checker
        return memory


def _level_origin(frame: Frame, rise: LossRise) -> Origin:
    """Return the step from which on the loss is above its level, and the level there."""
    ranks = ranks_of(frame.parts)
    return Origin(
        step=rise.began,
        rank=one_rank(ranks),
        ranks=ranks,
        layer=None,
        kind=None,
        value=math.exp(rise.level),
        threshold=None,
        usual=math.exp(rise.usual),
        deviations=rise.errors,
        notes=(LEVEL_NOTE, RATE_NOTE) if rise.rate is RateChange.UNHEARD_OF else (LEVEL_NOTE,),
    )
