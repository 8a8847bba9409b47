"""The rules: what is bad, when it alerts, when it is over. Defined here, documented from here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from gradwatch_server.core.frames import BoolArray, FloatArray, Frame
from gradwatch_wire.health import EXPLODING_THRESHOLD, VANISHING_THRESHOLD, Severity

Steps = Annotated[int, Field(ge=1, le=100_000)]
Limit = Annotated[float, Field(gt=0, allow_inf_nan=False)]


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


class Rules(BaseModel):
    """All rules, as the `[rules]` table of `gradwatch.toml` sets them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    nonfinite: NonfiniteRule = NonfiniteRule()
    exploding: ExplodingRule = ExplodingRule()
    vanishing: VanishingRule = VanishingRule()


RuleName = Literal["nonfinite", "exploding", "vanishing"]
Rule = NonfiniteRule | ExplodingRule | VanishingRule


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one rule says of one frame.

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


def verdict(name: RuleName, frame: Frame, marked: Flags, rules: Rules) -> Verdict:
    """Judge one frame by one rule."""
    if name == "nonfinite":
        return Verdict(marked.nonfinite, marked.nonfinite, frame.present)
    measured = frame.present & ~marked.nonfinite
    if name == "exploding":
        held = measured & (frame.l2_max > rules.exploding.clear)
        return Verdict(marked.exploding, held, measured)
    held = measured & (frame.l2_min < rules.vanishing.clear)
    return Verdict(marked.vanishing, held, measured)


def worst_layer(name: RuleName, frame: Frame, marked: BoolArray) -> int:
    """Return the index of the marked layer that breaks the rule most."""
    indices = np.flatnonzero(marked)
    if name == "nonfinite":
        return int(indices[-1])
    values: FloatArray = frame.l2_max if name == "exploding" else -frame.l2_min
    return int(indices[np.argmax(values[indices])])
