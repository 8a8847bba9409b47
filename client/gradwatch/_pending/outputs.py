"""Magnitudes of module outputs, read on the host: how large, and which was the first to be bad.

Each call of a module has left one number. Which of several bad ones came first is judged by the
order of the calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from gradwatch_wire.columns import NOT_SEEN
from gradwatch_wire.names import Scalar


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls that the numbers of one device stand for, (calls,) each.

    Args:
        moments: When it returned, counted; None for calls inside compiled graphs.
        ranks: Its rank in the forward pass by the layers in it, None where that is not known.
    """

    modules: tuple[int, ...]
    moments: tuple[int | None, ...]
    ranks: tuple[int | None, ...]


class Habits:
    """Earlier records' findings of each module's output. Belongs to the sender's thread.

    Some modules return an Inf or a NaN in good steps, too: a mask, scores that are masked.

    Args:
        on_unseen: Called for a record without any output, until there was one.

    Attributes:
        infinite: Modules that returned an Inf, and no NaN, where all gradients were finite.
        nan: Modules that returned a NaN there.
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


class OutputReader:
    """Makes numbers of an `OutputMagnitudes` on the host.

    Args:
        shapes: What `take` gets: calls, and which pass; None if that comes along, with the largest
            of several.
        steps: The step of each pass, empty if there was one.
    """

    def __init__(
        self,
        habits: Habits,
        shapes: Sequence[tuple[Calls, float | None]],
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

    def take(self, values: Iterator[Sequence[float]]) -> None:
        """Take what `OutputMagnitudes.tensors` returned, at hand by now."""
        for calls, number in self._shapes:
            first = _calls(calls, next(values))
            self._add_largest(first if number is not None else _calls(calls, next(values)))
            self._found.append((next(values)[0] if number is None else number, first))

    def result(self, *, is_good: bool) -> tuple[list[float], dict[str, float]]:
        """Return the magnitude of each module, and the scalars that say where it began."""
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


def _calls(calls: Calls, numbers: Sequence[float]) -> list[_Call]:
    """Make calls of their magnitudes, and after these how many calls each stands for."""
    count = len(calls.modules)
    return list(
        map(_Call, calls.modules, calls.moments, calls.ranks, numbers[:count], numbers[count:])
    )


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
