"""NaN and Inf in gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.alert import place
from gradwatch_server.core.alerting.attribution import first_nonfinite, layer_kind, nonfinite_ranks
from gradwatch_server.core.alerting.evaluation import Context
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import SEVERITY, HealthShare, Limit, Steps
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.arrays import BoolArray, IndexArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.health import Severity


class NonfiniteRule(LayerRule):
    """Any NaN or Inf in a layer's gradient.

    Under a GradScaler (records carry `loss_scale`) a non-finite step is skipped. A single one is
    normal: that is how the scaler finds its scale. So the severity depends on how many there are.
    It may rise while the alert fires, and does not fall. Each rise is an event of its own, with the
    step in `raised_step`.

    Its origin is the layer whose gradient the backward pass computed first, which is the last in
    forward order: from there the NaN flows to every layer before it. If that is the model's last
    layer, the loss or the forward pass was already bad. The order is known from the first backward
    pass; in a compiled model it is not, and with several bad layers `layer` is then null, as it is
    when they turned bad at collections before the last one.
    """

    name = "nonfinite"
    health = HealthShare.EXPLODING

    severity: Severity = Field(Severity.CRITICAL, description=SEVERITY)
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

    def raised(self, observation: Frame, context: Context) -> BoolArray:
        """Return the layers with a NaN or an Inf, (layers,)."""
        return observation.nonfinite

    @classmethod
    def worst_first(cls, frame: Frame, flagged: BoolArray) -> IndexArray:
        """Return the flagged layers, the last first: of no two is one worse."""
        return np.flatnonzero(flagged)[::-1]

    def find_layer(self, frame: Frame, raised: BoolArray) -> int | None:
        """Return the layer that was bad first, None if it cannot be known."""
        return first_nonfinite(frame, raised)

    def find_ranks(self, frame: Frame, index: int) -> tuple[int, ...]:
        """Return the ranks where it was before a reduction could spread it."""
        return nonfinite_ranks(frame)

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return where it began: maybe at an earlier step than the frame's."""
        known = self.find_layer(frame, raised)
        index = int(self.worst_first(frame, raised)[0]) if known is None else known
        origin = super().origin(frame, context, raised)
        return replace(origin, step=frame.bad_step, kind=layer_kind(frame, index))

    def severity_of(self, frame: Frame, in_a_row: int) -> Severity:
        """Return how much it matters, less so where a GradScaler skipped the step."""
        if frame.loss_scale is None or not frame.loss_scale >= self.min_loss_scale:
            return self.severity
        return self.skips_severity if in_a_row >= self.skips else self.skipped_severity

    def describe(self, origin: Origin) -> str:
        """Return what is wrong in a few words."""
        return f"{'NaN' if origin.kind == 'nan' else 'Inf'} in the gradient of {place(origin)}"
