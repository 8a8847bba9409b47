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


class Habits:
    """What earlier records have shown of each module's output. Belongs to the sender's thread.

    Some modules return an Inf or a NaN in good steps, too: a mask, scores that are masked.

    Args:
        num_modules: How many are watched.
        on_unseen: Called for a record without any output, until there was one.

    Attributes:
        finite: Modules whose output has been finite in some record.
        infinite: Those that returned an Inf, and no NaN, where all gradients were finite.
        nan: Those that returned a NaN there.
    """

    def __init__(self, num_modules: int, on_unseen: Callable[[], None]) -> None:
        self.num_modules = num_modules
        self.finite: set[int] = set()
        self.infinite: set[int] = set()
        self.nan: set[int] = set()
        self._was_seen = False
        self._on_unseen = on_unseen

    def note(self, magnitudes: Sequence[float], *, is_good: bool) -> None:
        """Note a record; it is good if all its gradients are finite."""
        for module, magnitude in enumerate(magnitudes):
            if math.isfinite(magnitude):
                self.finite.add(module) if magnitude != NOT_SEEN else None
            elif is_good:
                (self.nan if math.isnan(magnitude) else self.infinite).add(module)
        self._was_seen = self._was_seen or any(each != NOT_SEEN for each in magnitudes)
        if not self._was_seen:
            self._on_unseen()

    def is_usual(self, module: int, magnitude: float) -> bool:
        """Tell whether a magnitude is non-finite as it is in good steps, too."""
        return module in (self.nan if math.isnan(magnitude) else self.infinite)

    def is_doubtful(self, module: int, magnitude: float) -> bool:
        """Tell whether a non-finite magnitude may hide that something began there, or did not."""
        if module in self.nan:
            return True  # one NaN more would not show
        return math.isinf(magnitude) and module not in self.finite | self.infinite


class OutputMagnitudes:
    """What the outputs of a watch's modules came to.

    Args:
        habits: What is usual for these modules.
        is_complete: Whether all calls are in it.
    """

    def __init__(self, habits: Habits, *, is_complete: bool = True) -> None:
        self._habits = habits
        self._numbers: dict[tuple[torch.device, Calls], _Numbers] = {}
        self._steps: list[int] = []  # of each pass
        self._is_complete = is_complete

    def empty(self) -> OutputMagnitudes:
        """Return one to which those of several passes can be added."""
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
            (device, calls, None if isinstance(own.number, Tensor) else own.number)
            for (device, calls), own in self._numbers.items()
        ]
        steps = self._steps if len(self._steps) > 1 else []
        return MagnitudeReader(self._habits, shapes, steps, is_complete=self._is_complete)


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

    def is_usual(self, habits: Habits) -> bool:
        return self.is_bad and habits.is_usual(self.module, self.magnitude)


class MagnitudeReader:
    """Makes numbers of an `OutputMagnitudes` on the host.

    Args:
        habits: What is usual for the modules.
        shapes: What `take` gets: device, calls, and which pass; None if that comes along, with the
            largest of several.
        steps: The step of each pass, empty if there was one.
        is_complete: Whether nothing is missing.
    """

    def __init__(
        self,
        habits: Habits,
        shapes: Sequence[tuple[torch.device, Calls, float | None]],
        steps: Sequence[int],
        *,
        is_complete: bool,
    ) -> None:
        self._habits = habits
        self._shapes = shapes
        self._steps = steps
        self._is_complete = is_complete
        self._found: list[tuple[float, list[_Call]]] = []  # which pass, and all calls in it
        self._magnitudes = [NOT_SEEN] * habits.num_modules

    def take(self, device: torch.device, numbers: Iterator[float]) -> None:
        """Take what `OutputMagnitudes.on` returned for a device, at hand by now."""
        for own, calls, number in self._shapes:
            if own == device:
                first = _calls(calls, numbers)
                self._add_largest(first if number is not None else _calls(calls, numbers))
                self._found.append((next(numbers) if number is None else number, first))

    def result(self, *, is_good: bool) -> tuple[list[float], dict[str, float]]:
        """Return the magnitude of each module, and the scalars that say where it began.

        Args:
            is_good: Whether all gradients of the record are finite.
        """
        habits, magnitudes = self._habits, self._magnitudes
        odd = [(m, v) for m, v in enumerate(magnitudes) if not math.isfinite(v)]
        bad = [each for each in odd if not habits.is_usual(*each)]
        is_doubtful = any(habits.is_doubtful(*each) for each in odd)
        found = self._first_pass() if bad else None
        habits.note(magnitudes, is_good=is_good)
        if not bad:
            return magnitudes, {}
        number, calls = found or (math.nan, [])
        is_known = calls and self._is_complete and not is_doubtful
        module = _first_bad(calls) if is_known else None
        scalars = {Scalar.NONFINITE_MODULE.value: math.nan if module is None else float(module)}
        if self._steps:
            step = math.nan if found is None else float(self._steps[int(number)])
            scalars[Scalar.NONFINITE_MODULE_STEP.value] = step
        return magnitudes, scalars

    def _first_pass(self) -> tuple[float, list[_Call]] | None:
        """Return the first pass in which an output was bad, and the calls in it that tell.

        None if it is not known: what is usual may have come before, and been kept in its place.
        """
        telling = [
            (number, [call for call in calls if not call.is_usual(self._habits)])
            for number, calls in self._found
        ]
        bad = [number for number, calls in telling if any(call.is_bad for call in calls)]
        if not bad:
            return None
        first = min(bad)
        return first, [call for number, calls in telling if number == first for call in calls]

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
    modules = {call.module for call in bad}
    if len(modules) == 1:
        return bad[0].module
    made = {(call.module, call.moment) for call in calls if call.count and call.module in modules}
    if any(call.rank is None for call in bad) or len(made) > len(modules):
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
