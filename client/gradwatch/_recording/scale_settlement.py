"""The loss scale of what was measured before it was known whether it carried one."""

from __future__ import annotations

from torch import Tensor

from gradwatch._faults import Faults
from gradwatch._recording.accumulator import SampleAccumulator
from gradwatch._recording.loss_scale import LossScale
from gradwatch._recording.step_sample import StepSample
from gradwatch_wire.columns import L2
from gradwatch_wire.names import Label, Point, Scalar


class ScaleSettlement:
    """Corrects what was measured, once a step shows what is used.

    Args:
        loss_scale: Knows the scaler.
    """

    def __init__(self, loss_scale: LossScale) -> None:
        self._loss_scale = loss_scale
        self._unscaled = set[int]()  # optimizers whose gradients carry no scale as they step

    def begin_step(
        self, optimizer: int, known: SampleAccumulator | None, *, has_closure: bool
    ) -> None:
        """Note that an optimizer's `step` begins.

        Args:
            optimizer: Which one.
            known: The passes of its window, None if there were none.
            has_closure: Whether it was given a closure.
        """
        is_another = self._loss_scale.settle(optimizer)
        is_used = self._loss_scale.is_used(optimizer, has_closure=has_closure)
        (self._unscaled.discard if is_used else self._unscaled.add)(optimizer)
        if known is None:
            return
        if is_another:
            _settle(known, None)
            known.latest.labels[Label.SCALED] = None
        _settle(known, self._loss_scale.value if is_used else None)

    def correct(self, sample: StepSample, optimizer: int, point: Point) -> None:
        """Take back that a sample carried a scale, if it is known that it did not."""
        if point == Point.OPTIMIZER_STEP and optimizer in self._unscaled:
            _drop(sample)


def tell_unknown_scale(step: int, faults: Faults) -> None:
    """Tell that it is not known of a step that is sent."""
    why = (
        f"whether the gradients of step {step} carry a loss scale is not known before the "
        "first step that is taken; pass attach(scaler=...) if there is a GradScaler"
    )
    faults.note("loss scale", why)


def _drop(sample: StepSample) -> None:
    sample.scaled.clear()
    sample.device_scalars.pop(Scalar.LOSS_SCALE, None)
    sample.labels[Label.SCALED] = False


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
