"""Magnitudes of module outputs, of one backward pass or several, kept on the devices.

Each call of a module has left one number. Which of several bad ones came first is judged on the
host: `gradwatch._pending.outputs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from gradwatch._pending.outputs import Calls, Habits, OutputReader

MAX_SEQUENCES: Final = 16
"""Sequences of calls that are kept apart; a model may take another way in each pass."""


@dataclass(slots=True)
class _Numbers:
    """The numbers of one sequence of calls.

    Args:
        largest: (2, calls) float64: magnitudes, and how many calls each stands for; the largest
            over the passes.
        first: The same of the first pass in which a magnitude was non-finite, else of the last.
        number: 0-d, which pass that was.
    """

    largest: Tensor
    first: Tensor
    number: Tensor | float

    def shifted(self, by: int) -> _Numbers:
        return _Numbers(self.largest, self.first, self.number + by)

    def add(self, later: _Numbers, by: int) -> None:
        is_bad = ~self.first[0].isfinite().all()
        self.largest = torch.maximum(self.largest, later.largest)
        self.first = torch.where(is_bad, self.first, later.first)
        self.number = torch.where(is_bad, self.number, later.number + by)

    def tensors(self) -> list[Tensor]:
        """Return what `OutputReader.take` reads, in its order."""
        if isinstance(self.number, Tensor):
            return [self.first, self.largest, self.number]
        return [self.first]


class OutputMagnitudes:
    """Magnitudes of the outputs of a watch's modules."""

    def __init__(self, habits: Habits, *, is_complete: bool = True) -> None:
        self._habits = habits
        self._numbers: dict[tuple[torch.device, Calls], _Numbers] = {}
        self._steps: list[int] = []  # of each pass
        self._is_complete = is_complete

    def empty(self) -> OutputMagnitudes:
        return OutputMagnitudes(self._habits)

    def put(self, calls: Calls, numbers: Tensor) -> None:
        """Add the numbers of one device, (2, calls) float64 as `_Numbers` has them, of a pass."""
        self._numbers[numbers.device, calls] = _Numbers(numbers, numbers, 0.0)

    def add(self, later: OutputMagnitudes, step: int) -> None:
        """Take in what came of a later pass, one of *step*."""
        by = len(self._steps)
        self._steps += later._steps or [step]
        self._is_complete = self._is_complete and later._is_complete
        for key, numbers in later._numbers.items():
            if key in self._numbers:
                self._numbers[key].add(numbers, by)
            elif len(self._numbers) < MAX_SEQUENCES:
                self._numbers[key] = numbers.shifted(by)
            else:
                self._is_complete = False

    def tensors(self) -> list[Tensor]:
        """Return what is to be read back, in the order in which the reader takes it."""
        return [tensor for number in self._numbers.values() for tensor in number.tensors()]

    def reader(self) -> OutputReader:
        """Return what makes numbers of it once they are at hand; it holds no tensor."""
        shapes = [
            (calls, None if isinstance(output.number, Tensor) else output.number)
            for (_, calls), output in self._numbers.items()
        ]
        steps = self._steps if len(self._steps) > 1 else []
        return OutputReader(self._habits, shapes, steps, is_complete=self._is_complete)
