"""What the windows of a watch ask of what measures, and of what knows of skipped steps."""

from __future__ import annotations

from typing import Protocol

from gradwatch_wire.names import Point


class WindowRecorder(Protocol):
    """What measures the gradients of one optimizer, and makes a record of a window's passes."""

    def measure(self, optimizer: int, step: int, point: Point) -> bool:
        """Measure the gradients as they are, as one more pass; False if there are none."""

    def pass_over(self) -> None:
        """Note a pass whose step is not due."""

    def forget(self, optimizer: int) -> None:
        """Drop what was measured in the window."""

    def report(self, optimizer: int, step: int, part: int, *, taken: bool) -> None:
        """Send what was measured in the window, if anything was, and begin the next."""

    def is_due(self, step: int) -> bool:
        """Tell whether a step is measured at all."""

    def begin_step(self, optimizer: int, *, has_closure: bool) -> None:
        """Note that `step` of an optimizer begins: what was measured is what it uses."""

    def add_scalars(self, optimizer: int, step: int, *, is_another: bool) -> None:
        """Add what `collect` was given, and measure anew if the gradients were changed by hand.

        Args:
            optimizer: Which one.
            step: The step that the window belongs to.
            is_another: Whether changed gradients are those of another micro-batch, and not the
                last pass's.
        """

    def collected_again(self) -> None:
        """Note that `collect` was called several times in one step."""


class SkippedSteps(Protocol):
    """What knows of steps that a GradScaler skips."""

    def note_pass(self, optimizer: int) -> None:
        """Note a backward pass of an optimizer's parameters."""

    def was_skipped(self, optimizer: int) -> bool:
        """Tell whether the step that the last pass belongs to was skipped, if it was not taken."""
