"""The window of one optimizer: what has happened since its last step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Window:
    """What is known of one optimizer since its last step.

    Args:
        passes: Backward passes so far.
        step: Number of the training step, once there was a pass.
        alone: Whether some pass reached the parameters of no other optimizer.
        training: Whether the model was in training mode at the first pass.
        stepped_before: Steps of any optimizer up to the first pass.
        inside: How many calls of this optimizer's `step` are running, one within the other.
        closure: Whether the running step was given a closure. Without one no pass can belong to it:
            a pass then means that the step has raised.
        evaluations: Evaluations of the closure in the running step.
        frozen: Whether the closure is at a later point of a line search.
        collected: Passes up to the last call of `collect`, 0 without one.
        is_micro_batch: Whether that call said that the step goes on.
        is_artificial: Whether the running step trains nothing.
    """

    passes: int = 0
    step: int = 0
    alone: bool = False
    training: bool = True
    stepped_before: int = 0
    inside: int = 0
    closure: bool = False
    evaluations: int = 0
    frozen: bool = False
    collected: int = 0
    is_micro_batch: bool = False
    is_artificial: bool = False
