"""Interface between the recorder and those that watch the passes between two collections."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from gradwatch._recording.step_sample import StepSample


class Observer:
    """Watches the model by hooks of its own; subclasses override what they need.

    All of it is called in the training thread, and may only enqueue work on the device.

    Attributes:
        active: Whether the next backward pass belongs to a step that will be collected.
        names_rank: Whether it is wanted as well for a step that may turn out to be collected:
            it shows which rank something bad comes from.
    """

    active = True
    names_rank = False

    def contribute(self, sample: StepSample) -> None:
        """Add to a sample what was seen since the last one."""

    def forget(self) -> None:
        """Drop what was seen since the last sample: it belongs to no sample."""

    def follow(self, index: int, parameter: nn.Parameter) -> None:
        """Watch a parameter that has taken a layer's place, or is a new layer."""

    def after_step(self, sample: StepSample) -> None:
        """Do what is due once in each collected step, after its sample was recorded."""

    def close(self) -> None:
        """Remove the hooks; may be called again."""


class OrderReader(Protocol):
    """Order in which the forward pass reaches the layers."""

    def read(self, output: object) -> None:
        """Read the graph of a loss that still has one."""

    def arrange(self, present: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
        """Return layers in forward order, and whether that is known; if not, as they are.

        Args:
            present: Indices of the layers that have a gradient, in the order of registration.
        """

    @property
    def is_looking(self) -> bool:
        """Search for the order: true while it goes on."""

    def forget(self) -> None:
        """Find the order anew: layers have become others."""

    def end_step(self) -> None:
        """Note that a step is over: graphs that follow are of the next one."""

    def close(self) -> None:
        """Stop watching; may be called again."""
