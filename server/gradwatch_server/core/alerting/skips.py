"""Steps that a GradScaler skipped, and the time in which it still looks for its scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from gradwatch_server.core.alerting.attribution import loss_was_bad
from gradwatch_server.core.alerting.forward import forward_was_bad
from gradwatch_server.core.frames.frame import Frame

CALIBRATION_FRAMES: Final = 32
"""Frames with a step that was taken, after which a scaler has found its scale."""

RESET: Final = 4.0
"""A scale that grows by more than so many times at once was set anew: scalers double it."""


def was_skipped(frame: Frame) -> bool:
    """Tell whether a GradScaler skipped the step of a frame for an overflow.

    A loss that is not finite, or an output of the forward pass, is no matter of the scale: then the
    step was skipped as well, and not for that.
    """
    if scale_of(frame) is None or not frame.nonfinite.any():
        return False
    return not loss_was_bad(frame, ()) and not forward_was_bad(frame, ())


def scale_of(frame: Frame) -> float | None:
    """Return the loss scale of a frame, None without a GradScaler or where it is non-finite."""
    scale = frame.loss_scale
    return None if scale is None or not math.isfinite(scale) else scale


class Calibration:
    """Whether a scaler still looks for its scale: at the beginning, and after it was set anew."""

    def __init__(self) -> None:
        self.num_taken = 0
        self.scale: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the scale is found."""
        return self.num_taken >= CALIBRATION_FRAMES

    def follow(self, scale: float, *, skipped: bool) -> bool:
        """Take in a frame of a run with a scaler; return whether the scale was set anew."""
        is_reset = self.scale is not None and scale > RESET * self.scale
        self.scale = scale
        if is_reset:
            self.num_taken = 0
        if not skipped:
            self.num_taken += 1
        return is_reset

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {"num_taken": self.num_taken, "scale": self.scale}

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        self.num_taken, self.scale = plain["num_taken"], plain["scale"]
