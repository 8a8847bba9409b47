"""Gradient norms that jump or grow beyond all that they were."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.attribution import explosion_ranks
from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.origin import Origin, one_rank
from gradwatch_server.core.alerting.rules.base import HealthShare, Limit, Sign
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.alerting.rules.module import ModuleRule, layers_of, ranks_with
from gradwatch_server.core.arrays import BoolArray, FloatArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.judge.deviations import DeviationKind
from gradwatch_server.core.judge.findings import UP, Findings
from gradwatch_wire.health import EXPLODING_THRESHOLD, Severity


class ExplodingRule(ModuleRule):
    """A module's gradient norm, or that of all modules, far beyond its own record.

    One module alone is told on its norm, in one frame or growing over 16 or 64. All modules
    together are told where the loss feels it.

    In the first 32 frames there is no record. A norm above `limit` is then `info`, and `severity`
    where the norm of all layers has grown fourfold and the loss is no better than at first, or the
    loss is 1.5 times the first losses.

    `layer` is null where no module stands out, `rank` where no rank does ([the
    origin](alerts.md#the-origin)). It is critical once the mean loss of 16 frames has been 1.5
    times the first losses for 32 frames, or that of 4 frames is 100 times them.
    """

    name = "exploding"
    recurs = True
    signs = Sign.UNUSUAL
    follows = (
        "nonfinite",
        "rank_divergence",
        "rank_outlier",
        "dead_layer",
        "vanishing",
        "layer_missing",
        "loss",
    )
    health = HealthShare.EXPLODING
    kinds: ClassVar[tuple[DeviationKind, ...]] = UP
    formula = """
        a mean of 1, 4, 16 or 64 frames is above the record of 256 frames, and its rise above the
        largest rise, by more than a margin ([the detector](alerts.md#the-detector)); without a
        history a layer has `l2 > limit`. It is held until the norm is within a factor of 2 of what
        was usual before, or for 256 frames.
    """
    tuning = """
        If one part of the model is louder than the rest, leave it out with `layers = ["!head.*"]`.
        Try it on a run that went well: `gradwatch rules check`.
    """
    source = """
        Records of a series are Rényi's (1953) order statistics; cut deviations are Huber's (1964).
        The limit of 100 is that of the documents that gradwatch was made from.
    """

    limit: Limit = Field(
        EXPLODING_THRESHOLD, description="L2 norm above which a layer is told without a history."
    )

    def seen(self, frame: Frame) -> BoolArray:
        """Return the layers with a finite norm, (layers,): an Inf is no large one."""
        return frame.present & ~frame.nonfinite

    def raised_layers(self, frame: Frame, findings: Findings, context: Context) -> BoolArray | None:
        """Return (layers,) those of modules beyond their record, or above the limit without one."""
        early = self._early(frame, findings, context)
        if not np.count_nonzero(findings.rising):  # nearly always
            return early
        rising = layers_of(context, findings.rising, frame)
        return rising if early is None else rising | early

    def held_modules(self, findings: Findings) -> BoolArray:
        """Return (modules,) those still above what was usual before."""
        return findings.high

    def severity_in(
        self, frame: Frame, context: Context, raised: BoolArray, in_a_row: int
    ) -> Severity:
        """Return info where there is no history, and nothing else shows that it matters."""
        findings = context.findings
        judged = layers_of(context, findings.rising | findings.high, frame)
        if not np.count_nonzero(judged & raised) and not findings.is_early_growth:
            return Severity.INFO
        return super().severity_in(frame, context, raised, in_a_row)

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return where and when it began; without a history the largest layer above the limit."""
        if (
            context.findings.largest(*self.kinds) is None
            and (frame.l2_max[raised] > self.limit).any()
        ):
            origin = LayerRule.origin(self, frame, context, raised)
            ranks = self.began_on(frame, context, raised) or origin.ranks
            return replace(origin, rank=one_rank(ranks), ranks=ranks)
        return super().origin(frame, context, raised)

    def threshold(self) -> float:
        return self.limit

    def excess_in(self, frame: Frame, context: Context) -> FloatArray:
        """Return by what factor each layer is beyond the limit or its module off, (layers,)."""
        if not context.findings.is_young.all():
            return super().excess_in(frame, context)
        excess = self.excess(frame)
        assert excess is not None  # noqa: S101 - for the type checker: there is a limit
        return excess

    def find_ranks(self, frame: Frame, index: int) -> tuple[int, ...]:
        """Return the ranks whose own gradient is above the limit, else those that show it."""
        if not frame.l2_max[index] > self.limit:
            return super().find_ranks(frame, index)
        return explosion_ranks(frame, index, self.limit) or ranks_with(
            frame, index, lambda part: part.peak > self.limit
        )

    def _early(self, frame: Frame, findings: Findings, context: Context) -> BoolArray | None:
        """Return (layers,) those above the limit of modules without a history, None if none is."""
        over: BoolArray = frame.l2_max > self.limit
        if not np.count_nonzero(over):  # nearly always
            return None
        over &= self.seen(frame)
        over &= context.judge.modules.spread(findings.is_young, len(over))
        return over if np.count_nonzero(over) else None
