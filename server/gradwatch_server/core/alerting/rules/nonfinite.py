"""NaN and Inf in gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.attribution import layer_kind, was_skipped
from gradwatch_server.core.alerting.causes import find_cause
from gradwatch_server.core.alerting.evaluation import NUM_BEFORE, Context
from gradwatch_server.core.alerting.forward import ForwardOrigin
from gradwatch_server.core.alerting.origin import Origin, find_nonfinite, one_rank
from gradwatch_server.core.alerting.rules.base import SEVERITY, HealthShare, Sign
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.arrays import BoolArray, IndexArray
from gradwatch_server.core.frames.frame import Frame, LateFrame
from gradwatch_wire.health import Severity


class NonfiniteRule(LayerRule):
    """Any NaN or Inf in a layer's gradient.

    Under a GradScaler (records carry `loss_scale`) a non-finite step is skipped, which is normal
    now and then: `skipped_severity`. Too many skips are the matter of the rule `loss_scaler`. Where
    the loss or an output of the forward pass was non-finite, no scale could have helped:
    `severity`.

    The origin is the layer whose gradient the backward pass computed first, the last in forward
    order (`first_gradient`). `layer` names it too, unless the loss of that rank and step was
    non-finite (`bad_loss`): then it began in the loss or the forward pass. Without a loss, `layer`
    is also null if it is the model's last layer and others are bad. The order is known from the
    first backward pass, in a compiled model maybe not; with several bad layers both are then null.

    Where steps before were not looked at (`attach(every=...)`, or a budget) it began after
    `last_good_step`, at `step` at the latest. If all layers are bad by then, no layer is named.

    With `attach(activations=...)` `module` names the first module whose output was non-finite,
    `magnitude` is NaN or Inf, and `magnitudes_before` has its largest magnitudes in the frames
    before.
    """

    name = "nonfinite"
    takes = (Frame, LateFrame)
    signs = Sign.NONFINITE
    health = HealthShare.EXPLODING
    formula = "a layer's gradient has a NaN or an Inf on any rank: `nan > 0` or `inf > 0`."
    tuning = """
        A scaler that skips now and then is only told as info; how many skips are too many is set
        in `loss_scaler`. Silence is no cure: what is non-finite without a scaler is in the
        weights after the step.
    """
    source = """
        SageMaker Debugger's `ExplodingTensor` and Megatron-LM's `--check-for-nan-in-loss-and-grad`
        look for the same. That a GradScaler's skipped steps are no fault is PyTorch's own
        documentation of automatic mixed precision.
    """

    severity: Severity = Field(Severity.CRITICAL, description=SEVERITY)
    skipped_severity: Severity = Field(
        Severity.INFO, description="Severity instead where a GradScaler skips the step."
    )

    def raised(self, observation: Frame, context: Context) -> BoolArray:
        """Return the layers with a NaN or an Inf, (layers,)."""
        return observation.nonfinite

    @classmethod
    def worst_first(cls, frame: Frame, flagged: BoolArray) -> IndexArray:
        """Return the flagged layers, the last first: of no two is one worse."""
        return np.flatnonzero(flagged)[::-1]

    def origin(self, frame: Frame, context: Context, raised: BoolArray) -> Origin:
        """Return where it began: maybe at an earlier step than the frame's."""
        nonfinite = find_nonfinite(frame, raised)
        first = nonfinite.first_gradient
        index = int(self.worst_first(frame, raised)[0]) if first is None else first
        origin = Origin(
            step=frame.bad_step,
            rank=one_rank(nonfinite.ranks),
            ranks=nonfinite.ranks,
            layer=None if nonfinite.layer is None else context.names[nonfinite.layer],
            kind=layer_kind(frame, index),
            value=float(self.values(frame)[index]),
            threshold=self.threshold(),
            before=() if first is None else context.window.before(first, NUM_BEFORE),
            bad_loss=nonfinite.bad_loss,
            first_gradient=None if first is None else context.names[first],
            module=None if nonfinite.forward is None else nonfinite.forward.module,
            magnitude=None if nonfinite.forward is None else nonfinite.forward.magnitude,
            magnitudes_before=()
            if nonfinite.forward is None
            else _before(nonfinite.forward, context),
            last_good_step=frame.last_good_step,
        )
        return replace(origin, cause=find_cause(frame, context, origin))

    def severity_of(self, frame: Frame, in_a_row: int) -> Severity:
        """Return how much it matters, less so where a GradScaler skipped the step."""
        return self.skipped_severity if was_skipped(frame) else self.severity


def _before(forward: ForwardOrigin, context: Context) -> tuple[tuple[int, float], ...]:
    return context.outputs.before(forward.rank, forward.module)
