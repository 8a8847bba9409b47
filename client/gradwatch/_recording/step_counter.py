"""Number of the optimizer step, and which of the optimizers have taken it."""

from __future__ import annotations

from typing import Final

MAX_OPEN_ROUNDS: Final = 16
"""Steps that a late record may still be a part of."""


class StepCounter:
    """Counts training steps from 0.

    A step is a round of all optimizers, each of which takes it or has it skipped. It also ends when
    one of them is at it again (a critic that is trained more often). Without optimizers each call
    of `collect` is a step.
    """

    def __init__(self, num_optimizers: int) -> None:
        self.step = 0
        self._num_optimizers = num_optimizers
        self._stepped: set[int] = set()
        self._parts: dict[int, int] = {}  # of the last rounds that not all optimizers took part in

    def next_of(self, number: int) -> int:
        return self.step + (number in self._stepped)

    def set_next(self, number: int, step: int) -> None:
        """Give the step that this optimizer is at another number."""
        self._end_round_of(number)
        self.step = step

    def begin(self, number: int) -> tuple[int, int]:
        """Return `(step, part)` of what this optimizer has measured."""
        self._end_round_of(number)
        return self.step, len(self._stepped)

    def end(self, number: int) -> None:
        """Note that the optimizer has taken its step, or that it was skipped."""
        self._stepped.add(number)
        if len(self._stepped) == self._num_optimizers:
            self.advance()

    def advance(self) -> None:
        """Go on to the next step."""
        if len(self._stepped) < self._num_optimizers:
            self._parts[self.step] = len(self._stepped)
            if len(self._parts) > MAX_OPEN_ROUNDS:
                del self._parts[min(self._parts)]
        self.step += 1
        self._stepped.clear()

    def late_part(self, step: int) -> int:
        """Return which part of an earlier step a late record is."""
        last = self._num_optimizers - 1
        part = min(self._parts.get(step, last), last)
        self._parts[step] = part + 1
        return part

    def _end_round_of(self, number: int) -> None:
        if number in self._stepped:
            self.advance()
