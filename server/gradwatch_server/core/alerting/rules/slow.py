"""Runs that go on more slowly than before, without stopping."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.attribution import ranks_of
from gradwatch_server.core.alerting.evaluation import Context, Evaluation, RuleVerdict
from gradwatch_server.core.alerting.origin import Origin, one_rank
from gradwatch_server.core.alerting.rules.base import Rule, Sign, Steps
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.judge.detector import SCALES
from gradwatch_server.core.judge.deviations import DeviationKind
from gradwatch_server.core.judge.series import PACE

GROUP = "pace"
"""The group of its alerts."""


class SlowRule(Rule):
    """Steps that take longer than they ever did, and go on doing so.

    Its alert has the group `pace` and no layers. The mean of the logarithm of the step time over 16
    and 64 frames is judged, so that single evaluations and checkpoints do not count. `rank` is null
    in a job of several ranks: they wait for each other. A run without any step is told by
    `liveness`.
    """

    name = "slow"
    recurs = True
    takes = (Frame,)
    spoils_steps = False
    signs = Sign.UNUSUAL
    formula = """
        the mean step time of 16 or 64 frames is above the record of 256 frames, and its rise above
        the largest rise, by more than a margin, and above 1.5 times the usual
        ([the detector](alerts.md#the-detector)).
    """
    tuning = 'Turn it off for runs that share their devices: `runs = ["!shared-*"]`.'
    source = "Throttled devices and late data slow a run down for hours before anybody looks."

    clear_steps: Steps = Field(
        16, description="Consecutive frames that must be good before a firing alert is resolved."
    )

    def raised(self, observation: Frame, context: Context) -> BoolArray | None:
        """Return whether steps take too long, (1,); None if they do not."""
        return None if context.findings.largest(DeviationKind.SLOW) is None else np.array([True])

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        is_raised = bool(raised.any())
        yield Evaluation(
            group=GROUP,
            step=observation.step,
            received_ns=observation.received_ns,
            verdict=RuleVerdict.of_run(
                raised=is_raised,
                held=is_raised or context.findings.is_slow,
                seen=observation.step_time_s is not None,
            ),
            names=(),
            origin=lambda _: self.origin(observation, context),
            severity=lambda _: self.severity,
            key=f"{GROUP} {observation.step}",
        )

    def origin(self, frame: Frame, context: Context) -> Origin:
        """Return the step from which on steps took longer."""
        judge, deviation = context.judge, context.findings.largest(DeviationKind.SLOW)
        ranks = ranks_of(frame.parts)
        if deviation is None:
            step_time = frame.step_time_s or math.nan
            return Origin(frame.step, one_rank(ranks), ranks, None, None, step_time, None)
        mean = float(judge.detector.mean[deviation.scale, PACE])
        return Origin(
            step=judge.step_of(deviation),
            rank=one_rank(ranks),
            ranks=ranks,
            layer=None,
            kind=None,
            value=math.exp(mean),
            threshold=None,
            usual=math.exp(mean - deviation.rise),
            notes=(f"mean of {SCALES[deviation.scale]} frames",),
        )
