"""Which step it is, and which optimizers have taken it."""

from __future__ import annotations


class Steps:
    """Counts optimizer steps from 0.

    A step is a round of all optimizers. It also ends when one of them steps again (a critic that
    is trained more often), and when `collect` is called again without a step between: then the
    training script skipped the optimizer.
    """

    def __init__(self, num_optimizers: int) -> None:
        self.step = 0
        self._num_optimizers = num_optimizers
        self._stepped: set[int] = set()
        self._collected = False

    def on_collect(self, step: int | None) -> int:
        """Note an explicit collection; return its step."""
        if self._collected or self._stepped:
            self._advance()
        if step is not None:
            self.step = step
        self._collected = True
        return self.step

    def on_micro_batch(self) -> int:
        """Note a collection within a step; return the step it belongs to."""
        if self._collected or self._stepped:
            self._advance()
        return self.step

    def next_of(self, number: int) -> int:
        """Return the step that this optimizer takes next."""
        return self.step + (number in self._stepped)

    def begin(self, number: int) -> tuple[int, int]:
        """Return `(step, part)` of what this optimizer has measured; its own last step is over."""
        if number in self._stepped:
            self._advance()
        return self.step, len(self._stepped)

    def before_optimizer(self, number: int) -> tuple[int, int] | None:
        """Return `(step, part)` to be collected before this optimizer steps, or None."""
        if number in self._stepped:
            self._advance()
        return None if self._collected else (self.step, len(self._stepped))

    def after_optimizer(self, number: int) -> None:
        """Note that the optimizer steps; the last one ends the step."""
        self._stepped.add(number)
        if len(self._stepped) == self._num_optimizers:
            self._advance()

    def _advance(self) -> None:
        self.step += 1
        self._stepped.clear()
        self._collected = False
