"""The rules: what is bad, when it alerts, when it is over. Defined here, documented from here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradwatch_server.core.arrays import BoolArray, FloatArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.gains import AMPLIFYING_GAIN, DAMPING_GAIN
from gradwatch_wire.health import EXPLODING_THRESHOLD, VANISHING_THRESHOLD, Severity

Steps = Annotated[int, Field(ge=1, le=100_000)]
Limit = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(True, description="Whether the rule is evaluated at all.")
    for_steps: Steps = Field(
        1, description="Consecutive frames that must be bad before the alert fires."
    )
    clear_steps: Steps = Field(
        3, description="Consecutive frames that must be good before a firing alert is resolved."
    )


class NonfiniteRule(_Rule):
    """Any NaN or Inf in a layer's gradient."""

    severity: Severity = Field(Severity.CRITICAL, description="Severity of its alerts.")
    skipped_severity: Severity = Field(
        Severity.INFO, description="Severity instead where a GradScaler skips the step."
    )
    skips: Steps = Field(
        2, description="Skipped frames in a row from which on it is `skips_severity`."
    )
    skips_severity: Severity = Field(
        Severity.WARNING, description="Severity of several skipped frames in a row."
    )
    min_loss_scale: Limit = Field(
        1.0, description="Loss scale below which it is `severity` all the same."
    )

    def of_skip(self, loss_scale: float, in_a_row: int) -> Severity:
        """Return the severity of a non-finite frame whose step the scaler skipped."""
        if not loss_scale >= self.min_loss_scale:
            return self.severity
        return self.skips_severity if in_a_row >= self.skips else self.skipped_severity


class ExplodingRule(_Rule):
    """A layer's gradient L2 norm above `limit`."""

    limit: Limit = Field(EXPLODING_THRESHOLD, description="L2 norm above which a layer explodes.")
    clear: Limit = Field(
        EXPLODING_THRESHOLD / 2, description="L2 norm at or below which a layer is calm again."
    )
    for_steps: Steps = Field(2, description=_Rule.model_fields["for_steps"].description)
    severity: Severity = Field(Severity.CRITICAL, description="Severity of its alerts.")

    @model_validator(mode="after")
    def _hysteresis(self) -> ExplodingRule:
        if self.clear > self.limit:
            msg = f"clear ({self.clear:g}) must not be above limit ({self.limit:g})"
            raise ValueError(msg)
        return self


class VanishingRule(_Rule):
    """A layer's gradient L2 norm below `limit`."""

    limit: Limit = Field(VANISHING_THRESHOLD, description="L2 norm below which a layer vanishes.")
    clear: Limit = Field(
        2 * VANISHING_THRESHOLD, description="L2 norm at or above which a layer is alive again."
    )
    for_steps: Steps = Field(3, description=_Rule.model_fields["for_steps"].description)
    severity: Severity = Field(Severity.WARNING, description="Severity of its alerts.")

    @model_validator(mode="after")
    def _hysteresis(self) -> VanishingRule:
        if self.clear < self.limit:
            msg = f"clear ({self.clear:g}) must not be below limit ({self.limit:g})"
            raise ValueError(msg)
        return self


class GainRule(_Rule):
    """Gains between blocks outside `low` to `high` on more than `share` of the transitions."""

    low: Limit = Field(DAMPING_GAIN, description="Gain below which a transition damps.")
    high: Limit = Field(AMPLIFYING_GAIN, description="Gain above which a transition amplifies.")
    share: Share = Field(0.5, description="Share of the measured transitions that is too many.")
    clear: Share = Field(
        0.25, description="Share of them at or below which the flow is calm again."
    )
    for_steps: Steps = Field(3, description=_Rule.model_fields["for_steps"].description)
    severity: Severity = Field(Severity.WARNING, description="Severity of its alerts.")

    @model_validator(mode="after")
    def _in_order(self) -> GainRule:
        if self.low >= self.high:
            msg = f"low ({self.low:g}) must be below high ({self.high:g})"
            raise ValueError(msg)
        if self.clear > self.share:
            msg = f"clear ({self.clear:g}) must not be above share ({self.share:g})"
            raise ValueError(msg)
        return self


class RecordsLostRule(_Rule):
    """Records that a rank can no longer supply: full buffers, or a collection that was dropped."""

    for_steps: Annotated[int, Field(ge=1, le=1)] = Field(
        1, description="It fires at once; no other value is allowed."
    )
    clear_steps: Steps = Field(
        3, description="Consecutive frames without a new loss before a firing alert is resolved."
    )
    severity: Severity = Field(Severity.WARNING, description="Severity of its alerts.")


class Rules(BaseModel):
    """All rules, as the `[rules]` table of `gradwatch.toml` sets them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    nonfinite: NonfiniteRule = NonfiniteRule()
    exploding: ExplodingRule = ExplodingRule()
    vanishing: VanishingRule = VanishingRule()
    gain: GainRule = GainRule()
    records_lost: RecordsLostRule = RecordsLostRule()


LayerRuleName = Literal["nonfinite", "exploding", "vanishing"]
RuleName = Literal[LayerRuleName, "gain", "records_lost"]
Rule = NonfiniteRule | ExplodingRule | VanishingRule | GainRule | RecordsLostRule


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one rule says of one frame, of each layer; of the run, it is as if of one layer.

    Args:
        raised: (layers,) above the raising threshold.
        held: (layers,) not yet past the clearing threshold; a superset of `raised`.
        seen: (layers,) where the rule could see at all; where it could not (the layer is absent,
            or non-finite and it judges norms) it neither holds nor clears.
    """

    raised: BoolArray
    held: BoolArray
    seen: BoolArray


@dataclass(frozen=True, slots=True)
class Flags:
    """Which layers of one frame are what, (layers,) each. One layer has at most one of them."""

    nonfinite: BoolArray
    exploding: BoolArray
    vanishing: BoolArray


def flags(frame: Frame, rules: Rules) -> Flags:
    """Mark the layers of a frame by the raising thresholds, enabled or not."""
    nonfinite = frame.nonfinite
    measured = frame.present & ~nonfinite
    with np.errstate(invalid="ignore"):
        exploding = measured & (frame.l2_max > rules.exploding.limit)
        vanishing = measured & (frame.l2_min < rules.vanishing.limit) & ~exploding
    return Flags(nonfinite, exploding, vanishing)


def verdict(name: LayerRuleName, frame: Frame, marked: Flags, rules: Rules) -> Verdict:
    """Judge one frame by one rule."""
    if name == "nonfinite":
        return Verdict(marked.nonfinite, marked.nonfinite, frame.present)
    measured = frame.present & ~marked.nonfinite
    if name == "exploding":
        held = measured & (frame.l2_max > rules.exploding.clear)
        return Verdict(marked.exploding, held, measured)
    held = measured & (frame.l2_min < rules.vanishing.clear)
    return Verdict(marked.vanishing, held, measured)


def worst_layer(name: LayerRuleName, frame: Frame, marked: BoolArray) -> int:
    """Return the index of the marked layer that breaks the rule most."""
    indices = np.flatnonzero(marked)
    if name == "nonfinite":
        return int(indices[-1])
    values: FloatArray = frame.l2_max if name == "exploding" else -frame.l2_min
    return int(indices[np.argmax(values[indices])])


def severity(name: LayerRuleName, frame: Frame, rules: Rules, in_a_row: int) -> Severity:
    """Return how much it matters that a rule found *frame* bad, as it did so many before it."""
    if name == "nonfinite" and frame.loss_scale is not None:
        return rules.nonfinite.of_skip(frame.loss_scale, in_a_row)
    rule: Rule = getattr(rules, name)
    return rule.severity


def loss_verdict(*, lost: bool) -> Verdict:
    """Judge whether records were lost, by a declared loss or by a frame without one."""
    return Verdict(*np.array([[lost], [lost], [True]]))


def gain_verdict(gains: Sequence[float | None], rule: GainRule) -> Verdict:
    """Judge the gains of one step; transitions without a gain are not among those judged."""
    judged = [gain for gain in gains if gain is not None]
    share = sum(_is_outside(gain, rule) for gain in judged) / len(judged) if judged else 0.0
    raised, held, seen = np.array([[share > rule.share], [share > rule.clear], [bool(judged)]])
    return Verdict(raised, held, seen)


def worst_gain(gains: Sequence[float | None], rule: GainRule) -> int:
    """Return the transition with the gain farthest from 1, as a factor, of those outside."""
    factors = [
        _factor(gain) if gain is not None and _is_outside(gain, rule) else -1.0 for gain in gains
    ]
    return factors.index(max(factors))


def _is_outside(gain: float, rule: GainRule) -> bool:
    return not rule.low <= gain <= rule.high


def _factor(gain: float) -> float:
    return max(gain, 1.0 / gain) if gain else math.inf
