"""The loss scale of a GradScaler: what it is, which gradients carry it, and which carried it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, TypeGuard

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from gradwatch._faults import Faults
from gradwatch._recording.accumulator import SampleAccumulator
from gradwatch._recording.step_sample import StepSample
from gradwatch_wire.columns import L2
from gradwatch_wire.names import Label, Point, Scalar


class LossScale:
    """Reads the scaler's state; neither waits for the device nor changes anything.

    A scaler that was not given is looked for when an optimizer steps for the first time: it is then
    the one that calls. Until then nobody knows.

    Args:
        scaler: The one in use, None if there is none or if it is not known.
        is_given: Whether the script said which one it is, or that there is none.
    """

    def __init__(
        self, scaler: GradScaler | None, optimizers: Sequence[Optimizer], *, is_given: bool = True
    ) -> None:
        self._scaler = scaler
        self._optimizers = optimizers
        self._known = set(range(len(optimizers)) if is_given else ())
        self._without: set[int] = set()  # optimizers that step by a closure
        self._states: dict[int, Mapping[int, dict[str, Any]]] = {}

    @property
    def value(self) -> Tensor | None:
        """A copy of the scale, 0-d on its device; None before there is one."""
        scale = None if self._scaler is None else self._scaler._scale
        return None if scale is None else scale.clone()  # the scaler's own is written to

    def value_of(self, optimizer: int | None) -> Tensor | None:
        """The same; None for an optimizer that steps by a closure, without the scaler."""
        return None if optimizer in self._without else self.value

    def is_known(self, optimizer: int | None) -> bool:
        """Tell whether it is known if a scaler is in use for an optimizer; None: for the model."""
        return optimizer is None or optimizer in self._known

    def is_scaled(self, optimizer: int | None) -> bool:
        """Tell whether the gradients of an optimizer, None for any, still carry the scale."""
        if self._scaler is None or optimizer in self._without:
            return False
        states: Mapping[int, dict[str, Any]] = self._scaler._per_optimizer_states
        if optimizer is not None:
            own = id(self._optimizers[optimizer])
            states = {key: state for key, state in states.items() if key == own}
        return all(state["stage"].name == "READY" for state in states.values())

    def note_pass(self, optimizer: int) -> None:
        """Keep what the scaler will write in the step that this backward pass belongs to."""
        if self._scaler is not None:
            # `update` replaces this map, and forgets which steps were skipped.
            self._states[optimizer] = self._scaler._per_optimizer_states

    def was_skipped(self, optimizer: int) -> bool:
        """Tell whether the scaler has handled an optimizer's step since its last backward pass.

        Of an optimizer whose hooks saw no step that means that it was skipped.
        """
        state = self._states.get(optimizer, {}).get(id(self._optimizers[optimizer]))
        return state is not None and state["stage"].name == "STEPPED"

    def found_inf(self, optimizer: int, *, taken: bool) -> list[Tensor]:
        """Return what tells whether a gradient was non-finite, 0-d float32 per device.

        Args:
            taken: Whether its `step` was called. A fused one is called in any case and skips the
                update itself; what tells is known only within its step.
        """
        if taken:
            found = getattr(self._optimizers[optimizer], "found_inf", None)
            return [found] if isinstance(found, Tensor) else []
        if not self.was_skipped(optimizer):
            return []
        state = self._states[optimizer][id(self._optimizers[optimizer])]
        return [flag.clone() for flag in state["found_inf_per_device"].values()]

    def settle(self, optimizer: int) -> bool:
        """Look for the scaler among the callers of an optimizer's first step.

        Returns:
            Whether it is another than was thought.
        """
        if optimizer in self._known:
            return False
        self._known.add(optimizer)
        before = self._scaler
        self._scaler = _calling_scaler() or before
        return self._scaler is not before

    def is_used(self, optimizer: int, *, has_closure: bool) -> bool:
        """Tell, as an optimizer's step begins, whether its gradients carried the scale.

        No scaler steps by a closure: the passes that the closure runs carry no scale either.
        """
        stepping = self._optimizers[optimizer]
        if self._scaler is None or self._scaler._scale is None:
            return False
        state = self._scaler._per_optimizer_states.get(id(stepping))
        # A fused optimizer is handed the scale, None after `unscale_`.
        is_used = hasattr(stepping, "grad_scale") or (
            state is not None and state["stage"].name == "UNSCALED"
        )
        if has_closure and not is_used:
            self._without.add(optimizer)
        else:
            self._without.discard(optimizer)
        return is_used


def is_scaler(candidate: object) -> TypeGuard[GradScaler]:
    # Of the type: asking a proxy for its class may wake what it stands for. One that a subclass
    # has not finished making has no such attribute.
    return issubclass(type(candidate), GradScaler) and bool(getattr(candidate, "_enabled", False))


def _calling_scaler() -> GradScaler | None:
    """Return the scaler whose `step` is running, None if there is none."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if is_scaler(caller):
            return caller
        frame = frame.f_back
    return None


class ScaleSettlement:
    """Corrects what was measured, once a step shows what is used."""

    def __init__(self, loss_scale: LossScale) -> None:
        self._loss_scale = loss_scale
        self._unscaled = set[int]()  # optimizers whose gradients carry no scale as they step

    def begin_step(
        self, optimizer: int, known: SampleAccumulator | None, *, has_closure: bool
    ) -> None:
        """Note that an optimizer's `step` begins.

        Args:
            known: The passes of its window, None if there were none.
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
