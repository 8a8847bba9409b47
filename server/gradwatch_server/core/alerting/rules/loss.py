"""A loss that is not finite, or far above all that it was."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.attribution import high_loss_ranks, nonfinite_ranks, ranks_of
from gradwatch_server.core.alerting.causes import find_cause
from gradwatch_server.core.alerting.evaluation import Context, Evaluation, RuleVerdict
from gradwatch_server.core.alerting.origin import Origin, one_rank
from gradwatch_server.core.alerting.rules.base import Rule, Sign, Steps
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.judge.detector import SCALES
from gradwatch_server.core.judge.deviations import Deviation, DeviationKind
from gradwatch_server.core.judge.series import LOSS_SERIES
from gradwatch_wire.health import Severity, nonfinite_kind

GROUP = "loss"
"""The group of its alerts."""

MEAN_NOTE: Final = "mean of {} frames"


class LossRule(Rule):
    """A loss that is not finite, or far above its own record.

    Its alert has the group `loss` and no layers. The mean loss of 1, 4, 16 and 64 frames is judged,
    by its logarithm while no loss was negative; a loss below a few hundredths of its first values
    does not matter. Within 96 frames after the learning rate rose by half nothing is told; where
    the rate is more than 4 times any before, a small rise is enough.

    A non-finite loss is critical at once; where gradients are non-finite in the same step, the rule
    `nonfinite` tells of both.
    """

    name = "loss"
    recurs = True
    follows = (
        "nonfinite",
        "exploding",
        "dead_layer",
        "vanishing",
        "layer_missing",
        "rank_divergence",
    )
    takes = (Frame,)
    signs = Sign.UNUSUAL | Sign.NONFINITE
    formula = """
        a mean of 1, 4, 16 or 64 frames is above the record of 256 frames, and its rise above the
        largest rise, by more than a margin ([the detector](alerts.md#the-detector)).
    """
    tuning = """
        Give `attach` the mean over more samples if you have it, and log the learning rate: the rule
        goes by it.
    """
    source = """
        That small rises are judged over several frames is Page's (1954) idea. The step is the most
        likely one of a change of the mean (Hinkley 1970).
    """

    clear_steps: Steps = Field(
        16, description="Consecutive frames that must be good before a firing alert is resolved."
    )

    def raised(self, observation: Frame, context: Context) -> BoolArray | None:
        """Return whether the loss is too high, (1,); None if it is not."""
        loss = observation.loss
        if loss is not None and nonfinite_kind(loss) is not None:
            return np.array([not observation.nonfinite.any()])
        return np.array([True]) if _deviation(context) is not None else None

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        findings = context.findings
        is_bad = observation.loss is not None and not math.isfinite(observation.loss)
        severe = is_bad or findings.is_diverging
        yield Evaluation(
            group=GROUP,
            step=observation.step,
            received_ns=observation.received_ns,
            verdict=RuleVerdict.of_run(
                raised=bool(raised.any()),
                held=bool(raised.any()) or findings.is_loss_high or is_bad,
                seen=observation.loss is not None,
            ),
            names=(),
            origin=lambda _: self.origin(observation, context),
            severity=lambda _: Severity.CRITICAL if severe else self.severity,
            key=f"{GROUP} {observation.step}",
            is_alone=is_bad and not observation.nonfinite.any(),
        )

    def origin(self, frame: Frame, context: Context) -> Origin:
        """Return the step from which on the loss was high, and the rank whose loss it is."""
        loss = math.nan if frame.loss is None else frame.loss
        kind = nonfinite_kind(loss)
        if kind is not None:
            ranks = nonfinite_ranks(frame)
            return Origin(frame.step, one_rank(ranks), ranks, None, kind, loss, None)
        judge, deviation = context.judge, _deviation(context)
        ranks = high_loss_ranks(frame, judge.usual_loss()) or ranks_of(frame.parts)
        if deviation is None:
            return Origin(frame.step, one_rank(ranks), ranks, None, None, loss, None)
        mean = float(judge.detector.mean[deviation.scale, LOSS_SERIES])
        usual = mean - deviation.rise
        frames = SCALES[deviation.scale]
        usual_rise = float(judge.detector.rise_deviation[deviation.scale, LOSS_SERIES])
        origin = Origin(
            step=judge.step_of(deviation),
            rank=one_rank(ranks),
            ranks=ranks,
            layer=None,
            kind=None,
            value=mean if judge.state.maker.is_raw_loss else math.exp(mean),
            threshold=None,
            usual=usual if judge.state.maker.is_raw_loss else math.exp(usual),
            deviations=deviation.rise / usual_rise,
            notes=(MEAN_NOTE.format(frames),) if frames > 1 else (),
        )
        return replace(origin, cause=find_cause(frame, context, origin))


def _deviation(context: Context) -> Deviation | None:
    return context.findings.largest(DeviationKind.LOSS)
