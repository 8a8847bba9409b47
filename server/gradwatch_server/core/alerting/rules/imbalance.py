"""How far the largest and the smallest gradient norm of a model are apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.attribution import ranks_of
from gradwatch_server.core.alerting.baselines.judgement import FIRST_MODULE, Judgement
from gradwatch_server.core.alerting.baselines.running import RunningStatistics
from gradwatch_server.core.alerting.evaluation import NUM_BEFORE, Context, Evaluation, Verdict
from gradwatch_server.core.alerting.origin import Origin, one_rank
from gradwatch_server.core.alerting.rules.base import Limit, Rule, Steps
from gradwatch_server.core.alerting.rules.module import layers_of, worst_layer
from gradwatch_server.core.alerting.wording import place
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.health import Severity

GROUP: Final = "modules"
"""The group of its alerts."""

_FLOOR: Final = np.array([0.1])


class ImbalanceMemory:
    """What the ratio usually is; its logarithm is judged.

    Attributes:
        value: Logarithm of the ratio in the latest frame, NaN without one; not saved.
        usual: What it usually was before it was told.
        is_high: Whether it is far above that; not saved.
    """

    def __init__(self) -> None:
        self.value = self.usual = math.nan
        self.is_high = False
        self._running = RunningStatistics()
        self._running.fit(1)

    def follow(self, value: float, ratio: float, deviations: float) -> None:
        """Take in a frame's ratio; *ratio* is the logarithm of what is far above the usual."""
        deviation = self._running.deviation(_FLOOR)
        rise = value - float(self._running.mean[0])
        self.value = value
        known = bool(self._running.is_known()[0])
        self.is_high = known and rise > max(ratio, deviations * float(deviation[0]))
        if not self.is_high:
            self.usual = float(self._running.mean[0]) if known else math.nan
        self._running.add(np.array([value]), deviation)

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {"running": self._running.state_dict(), "usual": self.usual}

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        self._running = RunningStatistics.from_state_dict(plain["running"])
        self.usual = plain["usual"]


class ImbalanceRule(Rule):
    """The largest gradient norm of a module above `limit` times the smallest, unlike before.

    Far above its own usual: `ratio` times, and `deviations` usual deviations above it. It is about
    the run: its alert has the group `modules` and no layers. Its origin is the module, the largest
    or the smallest, that is farther from what was usual of it.

    It is off: of 14 healthy trainings 8 were above 1,000, three of them always, and the ratio moved
    by 5,000 times its median. What it would tell of, `spike`, `vanishing` and `drift` tell with a
    module to look at.
    """

    name = "imbalance"
    takes = (Frame,)
    formula = """
        with r the largest over the smallest norm of a module: `r > limit`, and
        `ln r - mean > max(ln ratio, deviations * s)`; held while `ln r` is more than half of
        `ln ratio` above that mean. Mean and s as in `spike`.
    """
    tuning = """
        Set `enabled = true` for a model whose modules are known to stay alike, with a `limit` from
        a run that went well: `gradwatch rules check`.
    """
    source = """
        1,000 is the limit of the documents that gradwatch was made from; measured on 14 healthy
        trainings it tells nothing. Early in its training GLM-130B's embedding had a gradient norm
        orders of magnitude above the others (arXiv 2210.02414).
    """

    enabled: bool = Field(False, description="Whether the rule is evaluated at all.")
    limit: Limit = Field(1000.0, description="Largest over smallest norm above which it is told.")
    ratio: Limit = Field(10.0, description="Times its own usual.")
    deviations: Limit = Field(5.0, description="Usual deviations above it.")
    for_steps: Steps = Field(
        16, description="Consecutive frames that must be bad before the alert fires."
    )
    clear_steps: Steps = Field(
        16, description="Consecutive frames that must be good before a firing alert is resolved."
    )
    severity: Severity = Field(Severity.INFO, description="Severity of its alerts.")

    def memory(self) -> ImbalanceMemory:
        """Return a new memory."""
        return ImbalanceMemory()

    def raised(self, observation: Frame, context: Context) -> BoolArray:
        """Return whether the ratio is far above its usual, (1,)."""
        memory = self._memory(context)
        samples = context.judge(observation).samples[FIRST_MODULE:]
        value = math.nan
        if len(samples):
            value = float(np.fmax.reduce(samples) - np.fmin.reduce(samples))
        memory.follow(value, math.log(self.ratio), self.deviations)
        return np.array([memory.is_high and value > math.log(self.limit)])

    def evaluate(
        self, observation: Frame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        """Yield the one evaluation of a step."""
        memory = self._memory(context)
        yield Evaluation(
            group=GROUP,
            step=observation.step,
            received_ns=observation.received_ns,
            verdict=Verdict.of_run(
                raised=bool(raised.any()),
                held=bool(raised.any()) or memory.value > memory.usual + math.log(self.ratio) / 2,
                seen=not math.isnan(memory.value),
            ),
            names=(),
            origin=lambda _: self.origin(observation, context),
            severity=lambda _: self.severity,
        )

    def origin(self, frame: Frame, context: Context) -> Origin:
        """Return the module that is farthest from its usual, of the largest and the smallest."""
        judgement = context.judge(frame)
        module, sign = _farthest(judgement)
        flagged = np.arange(len(judgement.norms)) == module
        layer = worst_layer(frame, context, layers_of(judgement, flagged, frame), sign)
        ranks = ranks_of(frame.parts)
        usual = self._memory(context).usual
        return Origin(
            step=frame.step,
            rank=one_rank(ranks),
            ranks=ranks,
            layer=context.names[layer],
            kind=None,
            value=_exp(self._memory(context).value),
            threshold=self.limit,
            before=context.window.before(layer, NUM_BEFORE),
            usual=None if math.isnan(usual) else _exp(usual),
        )

    def describe(self, origin: Origin) -> str:
        """Return what is wrong in a few words."""
        usual = f", usually {origin.usual:.3g}" if origin.usual is not None else ""
        return (
            f"the largest gradient norm is {origin.value:.3g} times the smallest{usual}, "
            f"by {place(origin)}"
        )

    def _memory(self, context: Context) -> ImbalanceMemory:
        memory = context.memory(self.name)
        assert isinstance(memory, ImbalanceMemory)  # noqa: S101 - for the type checker
        return memory


def _farthest(judgement: Judgement) -> tuple[int, int]:
    """Return the largest or smallest module, whichever is unusual, and 1 or -1 for which it is."""
    samples, z = judgement.samples[FIRST_MODULE:], np.abs(judgement.z[FIRST_MODULE:])
    largest, smallest = int(np.nanargmax(samples)), int(np.nanargmin(samples))
    return (largest, 1) if z[largest] >= z[smallest] else (smallest, -1)


def _exp(logarithm: float) -> float:
    try:
        return math.exp(logarithm)
    except OverflowError:
        return math.inf
