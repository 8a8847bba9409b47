"""Magnitudes of module outputs, of one backward pass or several: on the devices, then at hand.

Each call of a module has left one number. Which of several bad ones came first is judged on the
host, by the order of the calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import torch
from torch import Tensor

from gradwatch_wire.columns import NOT_SEEN
from gradwatch_wire.names import Scalar

MAX_SEQUENCES: Final = 16
"""Sequences of calls that are kept apart; a model may take another way in each pass."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Which calls the numbers of one device stand for, (calls,) each.

    Args:
        modules: The module that was called.
        moments: When it returned, counted; None for calls inside compiled graphs.
        ranks: Its rank in the forward pass by the layers in it, None where that is not known.
    """

    modules: tuple[int, ...]
    moments: tuple[int | None, ...]
    ranks: tuple[int | None, ...]


@dataclass(slots=True)
class _Numbers:
    """The numbers of one sequence of calls.

    Args:
        largest: (2, calls) float64: magnitudes, and how many calls each stands for; the largest
            over the passes.
        first: Likewise, of the first pass in which a magnitude was non-finite, else of the last.
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
        """Return what `MagnitudeReader.take` reads, in its order."""
        if isinstance(self.number, Tensor):
            return [self.first, self.largest, self.number]
        return [self.first]


class OutputMagnitudes:
    """What the outputs of a watch's modules came to.

    Args:
        num_modules: How many are watched.
        tell: Is told, in the sender's thread, whether any of them was seen.
        is_complete: Whether all calls are in it.
    """

    def __init__(
        self, num_modules: int, tell: Callable[[bool], None], *, is_complete: bool = True
    ) -> None:
        self._num_modules = num_modules
        self._tell = tell
        self._numbers: dict[tuple[torch.device, Calls], _Numbers] = {}
        self._steps: list[int] = []  # of each pass
        self._is_complete = is_complete

    def empty(self) -> OutputMagnitudes:
        """Return one to which those of several passes can be added."""
        return OutputMagnitudes(self._num_modules, self._tell)

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

    def devices(self) -> list[torch.device]:
        """Return the devices that have some of it."""
        return [device for device, _ in self._numbers]

    def on(self, device: torch.device) -> list[Tensor]:
        """Return what is on a device, to be read back."""
        mine = [own for (place, _), own in self._numbers.items() if place == device]
        return [tensor for own in mine for tensor in own.tensors()]

    def reader(self) -> MagnitudeReader:
        """Return what makes numbers of it once they are at hand; it holds no tensor."""
        shapes = [
            (device, calls, isinstance(own.number, Tensor))
            for (device, calls), own in self._numbers.items()
        ]
        steps = self._steps if len(self._steps) > 1 else []
        return MagnitudeReader(self._num_modules, shapes, steps, self._is_complete, self._tell)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call, in one pass."""

    module: int
    moment: int | None
    rank: int | None
    magnitude: float
    count: float

    @property
    def is_bad(self) -> bool:
        return not math.isfinite(self.magnitude)


class MagnitudeReader:
    """Makes numbers of an `OutputMagnitudes` on the host.

    Args:
        num_modules: How many modules are watched.
        shapes: What `take` gets: device, calls, and whether of several passes.
        steps: The step of each pass, empty if there was one.
        is_complete: Whether nothing is missing.
        tell: Is told whether any module was seen.
    """

    def __init__(
        self,
        num_modules: int,
        shapes: Sequence[tuple[torch.device, Calls, bool]],
        steps: Sequence[int],
        is_complete: bool,
        tell: Callable[[bool], None],
    ) -> None:
        self._shapes = shapes
        self._steps = steps
        self._is_complete = is_complete
        self._tell = tell
        self._bad: list[tuple[float, list[_Call]]] = []  # which pass, and all calls in it
        self._magnitudes = [NOT_SEEN] * num_modules

    def take(self, device: torch.device, numbers: Iterator[float]) -> None:
        """Take what `OutputMagnitudes.on` returned for a device, at hand by now."""
        for own, calls, is_merged in self._shapes:
            if own == device:
                first = _calls(calls, numbers)
                self._add_largest(_calls(calls, numbers) if is_merged else first)
                number = next(numbers) if is_merged else 0.0
                if any(call.is_bad for call in first):
                    self._bad.append((number, first))

    def result(self) -> tuple[list[float], dict[str, float]]:
        """Return the magnitude of each module, and the scalars that say where it began."""
        self._tell(any(magnitude != NOT_SEEN for magnitude in self._magnitudes))
        if not self._bad:
            return self._magnitudes, {}
        number = min(number for number, _ in self._bad)
        calls = [call for other, own in self._bad if other == number for call in own]
        module = _first_bad(calls) if self._is_complete else None
        scalars = {Scalar.NONFINITE_MODULE.value: math.nan if module is None else float(module)}
        if self._steps:
            scalars[Scalar.NONFINITE_MODULE_STEP.value] = float(self._steps[int(number)])
        return self._magnitudes, scalars

    def _add_largest(self, calls: Iterable[_Call]) -> None:
        for call in calls:
            known = self._magnitudes[call.module]
            if call.count and not math.isnan(known) and not call.magnitude <= known:
                self._magnitudes[call.module] = call.magnitude


def _calls(calls: Calls, numbers: Iterator[float]) -> list[_Call]:
    magnitudes = list(islice(numbers, len(calls.modules)))
    # As many of everything: the counts come after the magnitudes.
    return list(map(_Call, calls.modules, calls.moments, calls.ranks, magnitudes, numbers))


def _first_bad(calls: Sequence[_Call]) -> int | None:
    """Return the module whose output was the first to be non-finite, None if that is not known."""
    bad = [call for call in calls if call.is_bad]
    if any(call.count > 1 for call in bad):
        return None  # it may have got there between the calls of another one
    if all(call.moment is not None for call in bad):
        return _first_returned(calls, bad)
    if len({call.module for call in bad}) == 1:
        return bad[0].module
    if any(call.rank is None for call in bad):
        return None
    return min(bad, key=lambda call: call.rank or 0).module


def _first_returned(calls: Sequence[_Call], bad: Sequence[_Call]) -> int | None:
    """Return the same where the order of the calls is known.

    There may have been another forward pass, of a batch that was dropped: what the last call of
    each module shows has to agree.
    """
    last: dict[int, int] = {}
    for call in calls:
        last[call.module] = max(last.get(call.module, -1), call.moment or 0)
    lasting = [call for call in bad if call.moment == last[call.module]]
    found = {min(some, key=lambda call: call.moment or 0).module for some in (bad, lasting) if some}
    return found.pop() if lasting and len(found) == 1 else None
