"""The loss scale of what was measured before it was known whether it carried one."""

from __future__ import annotations

from torch import Tensor

from gradwatch._faults import Faults
from gradwatch._recording.accumulator import SampleAccumulator
from gradwatch._recording.step_sample import StepSample
from gradwatch_wire.columns import L2
from gradwatch_wire.names import Label, Point, Scalar


def settle_scale(known: SampleAccumulator, scale: Tensor | None, *, is_another: bool) -> None:
    """Correct what was measured.

    Args:
        known: The passes of a window.
        scale: What they carried, 0-d, None if there is none.
        is_another: Whether another scaler is in use than was thought as they were measured.
    """
    if is_another:
        _settle(known, None)
        known.latest.labels[Label.SCALED] = None
    _settle(known, scale)


def drop_scale(sample: StepSample) -> None:
    """Take back that a sample carried a loss scale."""
    sample.scaled.clear()
    sample.device_scalars.pop(Scalar.LOSS_SCALE, None)
    sample.labels[Label.SCALED] = False


def tell_unknown_scale(step: int, faults: Faults) -> None:
    """Tell that it is not known of a step that is sent."""
    why = (
        f"whether the gradients of step {step} carry a loss scale is not known before the "
        "first step that is taken; pass attach(scaler=...) if there is a GradScaler"
    )
    faults.note("loss scale", why)


def _settle(known: SampleAccumulator, scale: Tensor | None) -> None:
    sample = known.latest
    if scale is None and L2 in sample.scaled:
        known.remove_scale()
    elif scale is not None and Scalar.LOSS_SCALE not in sample.device_scalars:
        sample.add_scalar(Scalar.LOSS_SCALE, scale)
        if sample.labels[Label.POINT] == Point.COLLECT:
            return  # measured before or after `unscale_`
        known.mark_scaled()
    sample.labels[Label.SCALED] = False
