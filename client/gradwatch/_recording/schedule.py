"""Schedule of a watch: which steps are measured in full, looked at by a sentinel, or counted."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from torch import Tensor

from gradwatch._pending.stats import StepRow
from gradwatch._recording.overhead import MOST_S, MOST_STEPS, PAIR_EVERY, Overhead, Pace
from gradwatch._recording.step_history import StepLoss
from gradwatch._statistics.sentinel import Alarms
from gradwatch_wire.limits import MAX_HISTORY

SETTLING_STEPS: Final = 32
"""Steps at the beginning that are measured in full, whatever the budget is."""

MIN_REST: Final = 4
"""Steps that are only counted, at least: to wake costs as much as to follow a few."""

TIMED_EVERY: Final = 64
"""Steps of a rest of which one shows how long a step takes without the watch."""

MAX_BROKEN_RESTS: Final = 3
"""Rests in a row that ended early. This training is not one whose steps can be only counted."""


@dataclass(slots=True)
class Rest:
    """Steps that are only counted.

    Args:
        step: The step that is under way.
        until: The first one that is measured again.
        clock: Returns seconds.
        began_s: When it began.
        num_steps: Steps of the optimizer so far.
        has_pass: Whether a backward pass was seen since the last step.
        has_closure: Whether the passes are run by a closure that the step is given.
        is_broken: Whether it has to end, because something happened that cannot be counted.
        wake_s: How long the waking took.
        probes: Whether a gradient is looked at in each step.
        alarms: Such looks in a row that found NaN or Inf.
        loss: Loss of the step under way.
        ended: Steps that have ended, as in a `StepRow`.
        end: Ends it at once, within a step.
    """

    step: int
    until: int
    clock: Callable[[], float]
    began_s: float
    num_steps: int = 0
    has_pass: bool = False
    has_closure: bool = False
    is_broken: bool = False
    wake_s: float = 0.0
    probes: bool = False
    alarms: Alarms = field(default_factory=Alarms)
    loss: StepLoss = field(default_factory=StepLoss)
    ended: deque[tuple[int, float, float | None, float | None, bool]] = field(
        default_factory=lambda: deque(maxlen=MAX_HISTORY)
    )
    end: Callable[[], None] = lambda: None

    def annotate(self, step: int | None, loss: Tensor | float | None, size: float | None) -> None:
        """Take in what is known of the step under way; with a closure, at its first evaluation."""
        if step is not None:
            self.step = step
        if loss is not None and self.has_pass and not (self.has_closure and self.loss.given):
            self.loss.add(loss, size)

    def end_step(self, rate: float | None, *, is_skipped: bool = False) -> float:
        """Count a step, and return the time."""
        now_s, known = self.clock(), None
        if self.loss.given:
            loss = self.loss.take()
            known = None if isinstance(loss, Tensor) else loss  # of a model on the CPU: hardly ever
        self.ended.append((self.step, now_s, known, rate, is_skipped))
        self.step += 1
        return now_s

    @property
    def rows(self) -> list[StepRow]:
        return [StepRow(*own) for own in self.ended]

    @property
    def steps_s(self) -> list[float]:
        """Seconds of some steps, spread over the rest: others may be slow for a while."""
        ends_s = [own[1] for own in self.ended]
        return [ends_s[at] - ends_s[at - 1] for at in range(len(ends_s) - 1, 0, -TIMED_EVERY)]


class Schedule:
    """Schedule of the steps to measure, and of those that are only counted.

    Args:
        every: Steps between two that are measured, at the beginning and without a budget.
        budget: Decides about that, None without one.
        can_rest: Whether steps of this training may be only counted.
        agreed: Returns how many steps are between two that all ranks measure: what is measured more
            rarely is so on all of them.
        record_s: Returns how long the sender takes for a record, seconds.
        clock: Returns seconds.

    Attributes:
        is_timed: Whether there is a budget, so that it matters how long something takes.
    """

    def __init__(
        self,
        every: int,
        budget: Overhead | None = None,
        *,
        can_rest: bool = False,
        agreed: Callable[[], int] = lambda: 1,
        record_s: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.pace = Pace(every)
        self.clock = clock
        self.is_timed = budget is not None
        self._budget = budget
        self._can_rest = can_rest
        self._agreed = agreed
        self._record_s = record_s
        self._num_left = SETTLING_STEPS if budget is not None else 0
        self._num_broken = 0
        self._alarms = Alarms()  # of all rests
        self._own_s = 0.0  # spent since the last step ended
        self._entered_s = 0.0
        self._ended_s: float | None = None
        self._decided_at_s = 0.0
        self._look_s = 0.0

    def is_due(self, step: int) -> bool:
        """Tell whether a step is measured in full."""
        pace = self.pace
        if step % pace.every == 0 or self._num_left:
            return True
        return pace.rests and pace.every >= PAIR_EVERY and step % pace.every == 1

    def is_first_of(self, step: int, count: int) -> bool:
        every = 1 if self._num_left else self.pace.every
        return step % every == 0 and step % count < every

    def slice_of(self, step: int) -> tuple[int, int] | None:
        """Return which part of how many a sentinel reads in a step; None if it reads nothing."""
        slices = self.pace.slices
        return (step % slices, slices) if slices else None

    @property
    def is_settling(self) -> bool:
        """Beginning of a run with a budget: true while costs are found out."""
        return self._num_left > 0

    def enter(self) -> None:
        """Note that the watch begins to work in the training thread."""
        if self.is_timed:
            self._entered_s = self.clock()

    def leave(self) -> None:
        """Note that the watch ends to work in the training thread."""
        if self.is_timed:
            self._own_s += self.clock() - self._entered_s

    def add_look(self, own_s: float, *, is_whole: bool) -> None:
        """Note how long a sentinel took, to look at all gradients or at a part of them."""
        if self._budget is not None:
            self._look_s += own_s
            if is_whole:
                self._budget.add_look(own_s)

    def end_step(self, step: int, *, was_due: bool, may_rest: bool) -> Rest | None:
        """Take in that a step has ended, after `enter`; return the rest that begins now, if any.

        Args:
            may_rest: Whether it was one that can be only counted.
        """
        budget = self._budget
        if budget is None:
            return None
        now_s = self.clock()
        own_s = self._own_s + now_s - self._entered_s - self._look_s
        step_s = None if self._ended_s is None else now_s - self._ended_s
        if not was_due:
            budget.add_light(step_s, own_s, self._look_s)
        else:  # what the sentinel has taken while it settles is none of its cost
            budget.add_full(None if step_s is None else step_s - self._look_s, own_s)
        self._own_s, self._look_s, self._ended_s, self._entered_s = 0.0, 0.0, now_s, now_s
        self._num_left = max(self._num_left - 1, 0)
        if self._num_left:
            return None
        can_rest = self._can_rest and self._num_broken < MAX_BROKEN_RESTS
        if was_due or now_s - self._decided_at_s > MOST_S:
            self._decided_at_s = now_s
            budget.note_record(self._record_s())
            budget.decide(now_s, may_rest=can_rest)
        agreed = min(self._agreed(), MOST_STEPS)  # no other rank can keep this one from measuring
        if agreed > budget.pace.every:
            self.pace = Pace(agreed, budget.pace.slices or 1)
        else:
            self.pace = budget.pace
        if not (self.pace.rests and may_rest and can_rest):
            return None
        if self.is_due(step):
            return None
        until = step + self.pace.every - step % self.pace.every
        if until - step < MIN_REST:
            return None
        probes, alarms = self.pace.probes, self._alarms
        return Rest(step, until, self.clock, now_s, probes=probes, alarms=alarms)

    def wake(self, rest: Rest) -> None:
        self._num_broken = self._num_broken + 1 if rest.is_broken else 0
        if not (rest.is_broken or self.is_due(rest.step)):
            self._num_left = 2  # it has taken too long: what is measured next is not on the grid
        if self._budget is not None:
            self._budget.add_rest(rest.steps_s, rest.wake_s)
        self._own_s, self._ended_s = 0.0, self.clock()

    @property
    def wanted(self) -> int:
        return self.pace.every if self._budget is None else self._budget.pace.every

    def describe(self) -> str:
        """Say how often is measured, and what that takes of the training's time."""
        pace = self.pace
        if pace.every == 1:
            how = "each step in full"
        elif pace.rests:
            what = "counted and one gradient checked" if pace.probes else "counted"
            how = f"{_steps(pace.every)} in full, the others {what}"
        elif pace.slices:
            what = "a sentinel" if pace.slices == 1 else f"1/{pace.slices} of a sentinel"
            how = f"{_steps(pace.every)} in full, {what} on each"
        else:
            how = f"{_steps(pace.every)} in full"
        if self._budget is None or self._num_left:
            return how
        step_s, share = self._budget.step_s, self._budget.share_of(pace)
        return f"{how}: about {share:.1%} of {step_s * 1e3:.3g} ms"


def _steps(every: int) -> str:
    is_teen = every % 100 in {11, 12, 13}
    ending = "th" if is_teen else {1: "st", 2: "nd", 3: "rd"}.get(every % 10, "th")
    return f"every {every}{ending} step"
