"""Gains of the gradient from block to block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from pydantic import Field, model_validator

from gradwatch_server.core.alerting.evaluation import Context, Evaluation, RuleVerdict
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import FOR_STEPS, Limit, Rule, Share, Steps
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.gains import GainFrame
from gradwatch_wire.gains import AMPLIFYING_GAIN, DAMPING_GAIN


class GainRule(Rule):
    """Gains between blocks outside `low` to `high` on more than `share` of the transitions.

    Its alert has the group `blocks` and no layers. The limits are heuristics. The origin is the
    transition farthest from 1, `h.3 -> h.4`.
    """

    name = "gain"
    takes = (GainFrame,)
    spoils_steps = False
    formula = """
        more than `share` of the measured transitions have `gain < low` or `gain > high`; it is held
        while more than `clear` of them have.
    """
    tuning = """
        Blocks of different widths have gains far from 1 that mean nothing: choose a norm that does
        not depend on the width ([gains](gains.md)), or widen `low` and `high`. `runs` limits it to
        runs whose blocks are alike.
    """
    source = "0.5, 2.0 and one half are heuristics of the documents that gradwatch was made from."

    low: Limit = Field(DAMPING_GAIN, description="Gain below which a transition damps.")
    high: Limit = Field(AMPLIFYING_GAIN, description="Gain above which a transition amplifies.")
    share: Share = Field(0.5, description="Share of the measured transitions that is too many.")
    clear: Share = Field(
        0.25, description="Share of them at or below which the flow is calm again."
    )
    for_steps: Steps = Field(3, description=FOR_STEPS)

    @model_validator(mode="after")
    def _in_order(self) -> GainRule:
        if self.low >= self.high:
            msg = f"low ({self.low:g}) must be below high ({self.high:g})"
            raise ValueError(msg)
        if self.clear > self.share:
            msg = f"clear ({self.clear:g}) must not be above share ({self.share:g})"
            raise ValueError(msg)
        return self

    def raised(self, observation: GainFrame, context: Context) -> BoolArray:
        """Return whether too many transitions are outside, (1,)."""
        return self.verdict(observation.gains).raised

    def evaluate(
        self, observation: GainFrame, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        yield Evaluation(
            group="blocks",
            step=observation.step,
            received_ns=observation.received_ns,
            verdict=self.verdict(observation.gains),
            names=(),
            origin=lambda _: self.origin(observation),
            severity=lambda _: self.severity,
        )

    def verdict(self, gains: Sequence[float | None]) -> RuleVerdict:
        """Return what the gains of one step come to; those that were not measured do not count."""
        measured = [gain for gain in gains if gain is not None]
        outside = sum(map(self._is_outside, measured)) / len(measured) if measured else 0.0
        return RuleVerdict.of_run(
            raised=outside > self.share, held=outside > self.clear, seen=bool(measured)
        )

    def origin(self, frame: GainFrame) -> Origin:
        """Return the transition whose gain is farthest from 1."""
        worst = self.worst(frame.gains)
        gain = frame.gains[worst]
        value = math.nan if gain is None else gain
        return Origin(
            step=frame.step,
            rank=frame.ranks[0] if len(frame.ranks) == 1 else None,
            ranks=frame.ranks,
            layer=frame.transition(worst),
            kind=None,
            value=value,
            threshold=self.high if value > self.high else self.low,
        )

    def worst(self, gains: Sequence[float | None]) -> int:
        """Return the transition with the gain farthest from 1, as a factor, of those outside."""
        factors = [
            _factor(gain) if gain is not None and self._is_outside(gain) else -1.0 for gain in gains
        ]
        return factors.index(max(factors))

    def _is_outside(self, gain: float) -> bool:
        return not self.low <= gain <= self.high


def _factor(gain: float) -> float:
    return max(gain, 1.0 / gain) if gain else math.inf
