"""Backward passes of each optimizer step.

The window of an optimizer is what happens between two of its steps: one backward pass, several with
gradient accumulation, none when gradients are written by hand. It ends when the optimizer steps, or
when a pass begins on fresh gradients though no step was taken: then the update was skipped, by a
GradScaler or by the training script's own guard. Either way the window is one training step and
takes a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gradwatch._recording.loss_scale import LossScale
from gradwatch._recording.schedule import Rest
from gradwatch._recording.step_counter import StepCounter
from gradwatch_wire.names import Point

if TYPE_CHECKING:
    from gradwatch._recording.recorder import Recorder


MAX_RESTARTS: Final = 3
"""Passes at other weights in a row that are taken for those of one step, without a step to show."""


@dataclass(slots=True)
class AccumulationWindow:
    """Facts of one optimizer since its last step.

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
        nests: Whether calls of `step` have run within one another.
        restarts: Passes at other weights that have taken the place of those before.
        usual_restarts: The same in the last step that was taken.
        has_stepped: Whether the step before was taken.
        is_carried: Whether its first pass has added to the gradients of the step before.
        is_dropped: Whether the step will change nothing though it is called.
        is_unseen: Whether steps seem to be taken that nobody sees.
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
    nests: bool = False
    restarts: int = 0
    usual_restarts: int = 0
    has_stepped: bool = False
    is_carried: bool = False
    is_dropped: bool = False
    is_unseen: bool = False


class StepWindows:
    """The windows of all optimizers of a watch."""

    def __init__(
        self,
        recorder: Recorder,
        steps: StepCounter,
        num_optimizers: int,
        is_training: Callable[[], bool],
        skipped: LossScale,
    ) -> None:
        self._recorder = recorder
        self._steps = steps
        self._windows = [AccumulationWindow() for _ in range(num_optimizers)]
        self._is_training = is_training
        self._skipped = skipped
        self._num_stepped = 0

    @property
    def is_open(self) -> bool:
        """Progress: true if any optimizer has had a pass since its last step."""
        return any(window.passes for window in self._windows)

    @property
    def open(self) -> list[int]:
        return [number for number, window in enumerate(self._windows) if window.passes]

    def drop_step(self) -> None:
        """Note that the steps that are under way will leave the weights as they are."""
        for number in self.open:
            self._windows[number].is_dropped = True

    def step_of(self, optimizer: int) -> int:
        """Return the step that the next backward pass of an optimizer belongs to."""
        window = self._windows[optimizer]
        return window.step if window.passes else self._steps.next_of(optimizer)

    def end_pass(
        self,
        reached: Mapping[int, bool],
        has_moved: Callable[[int], bool],
        has_added: Callable[[int], bool],
    ) -> None:
        """Take in a backward pass that has ended.

        Args:
            reached: Optimizers whose parameters it reached, and whether it began on fresh
                gradients of theirs.
            has_moved: Tells whether an optimizer's parameters have changed since the pass before.
            has_added: Tells whether it has added to gradients of an optimizer that were not zero.
        """
        self.settle_skipped()
        for optimizer, fresh in reached.items():
            window = self._windows[optimizer]
            if window.inside and window.closure:
                self._end_pass_in_step(optimizer, fresh=fresh, has_added=has_added)
                continue
            if fresh and window.passes and not window.is_micro_batch:
                self._end_passes(optimizer, has_moved=has_moved(optimizer))
            self._add_pass(optimizer, has_added, alone=len(reached) == 1)

    def _end_passes(self, optimizer: int, *, has_moved: bool) -> None:
        """End the passes so far: their step was skipped, or goes on at other weights.

        Methods that look ahead change the weights between two passes of one step. How often they
        do so the steps before show. Where that goes on and on, steps are taken that nobody sees.
        """
        window = self._windows[optimizer]
        if has_moved and not window.is_unseen:
            if window.restarts < (window.usual_restarts or MAX_RESTARTS):
                self._recorder.forget(optimizer)
                window.passes = 0
                window.restarts += 1
                return
            window.is_unseen = window.restarts == MAX_RESTARTS
        self._settle(optimizer)

    def begin_step(
        self,
        optimizer: int,
        *,
        has_closure: bool,
        is_nested: Callable[[], bool],
        is_artificial: Callable[[], bool],
    ) -> None:
        """Note that an optimizer's `step` begins.

        Args:
            has_closure: Whether it was given a closure, which will run the backward pass.
            is_nested: Tells whether this call runs within another one of the same optimizer.
            is_artificial: Tells whether nothing is trained by it. Asked only without a pass.
        """
        window = self._windows[optimizer]
        window.is_artificial = not window.passes and is_artificial()
        if window.is_artificial:
            return
        if window.inside and is_nested():
            window.inside += 1
            window.nests = True
            return
        self.settle_skipped(but=optimizer)
        window.inside, window.closure = 1, has_closure
        window.evaluations, window.frozen = 0, False
        self._recorder.begin_step(optimizer, has_closure=has_closure)
        if not has_closure and not window.passes:
            self._begin(optimizer)
            self._measure(optimizer, Point.OPTIMIZER_STEP)

    def end_step(self, optimizer: int) -> Rest | None:
        """Note that an optimizer's `step` has returned: what was measured was used.

        Returns:
            Steps from here on that have to be counted only; None if there are none.
        """
        window = self._windows[optimizer]
        window.inside = max(window.inside - 1, 0)
        if window.inside or window.is_artificial:
            return None
        self._num_stepped += 1
        is_plain = window.passes > 0 and not (window.frozen or window.nests or window.restarts)
        rest = self._report(optimizer, taken=not window.is_dropped, is_plain=is_plain)
        if rest is not None:
            rest.has_closure = window.closure
        return rest

    def resume(self, rest: Rest) -> None:
        """Go on after steps that were only counted."""
        self._num_stepped += rest.num_steps
        self._steps.step = rest.step

    def collect(self, step: int | None, *, micro_batch: bool) -> None:
        """Take in a call of `collect`: it is about the windows that are open.

        If none is, the gradients came without a pass that was seen, and are measured now.

        Args:
            step: Number of the step, None to count.
        """
        self.settle_skipped()
        if step is not None:
            self._set_step(step)
        if not self.is_open:
            self._measure_by_hand()
        for optimizer, window in enumerate(self._windows):
            if window.passes and not window.frozen:
                self._collect(optimizer, micro_batch=micro_batch)

    def _set_step(self, step: int) -> None:
        """Give the step that is under way another number."""
        everyone = range(len(self._windows))
        next_of = {number: self._steps.next_of(number) for number in self.open or everyone}
        # A network that has stepped already may have got gradients from another one's pass.
        first = min(next_of.values())
        for number in (number for number, its in next_of.items() if its == first):
            self._steps.set_next(number, step)
            self._windows[number].step = step

    def _collect(self, optimizer: int, *, micro_batch: bool) -> None:
        window = self._windows[optimizer]
        if window.collected and not window.is_micro_batch:
            self._recorder.collected_again()
        is_another = window.is_micro_batch and window.collected == window.passes
        window.collected, window.is_micro_batch = window.passes, micro_batch
        self._recorder.add_scalars(optimizer, window.step, is_another=is_another)

    def annotate(self, step: int | None) -> list[int]:
        """Return the optimizers whose windows are open; the rest of a line search is in none.

        Args:
            step: Number to give to the step under way, None to count.
        """
        windows = enumerate(self._windows)
        found = [number for number, each in windows if each.passes and not each.frozen]
        if step is not None and found:
            self._set_step(step)
        return found

    def _measure_by_hand(self) -> None:
        for optimizer, window in enumerate(self._windows):
            self._begin(optimizer)
            if self._measure(optimizer, Point.COLLECT):
                self._skipped.note_pass(optimizer)
                window.passes, window.alone = 1, True

    def settle_skipped(self, but: int | None = None) -> None:
        """Report the windows whose step a GradScaler has just skipped."""
        for optimizer, window in enumerate(self._windows):
            open_still = optimizer != but and window.passes and not window.inside
            if open_still and self._skipped.was_skipped(optimizer):
                self._report(optimizer, taken=False)

    def close(self) -> None:
        """Report what is still open: no step will come."""
        for optimizer, window in enumerate(self._windows):
            if window.passes:
                self._settle(optimizer)

    def _end_pass_in_step(
        self, optimizer: int, *, fresh: bool, has_added: Callable[[int], bool]
    ) -> None:
        """Take in a pass that the closure ran. The first point at which it does is the step's."""
        window = self._windows[optimizer]
        if fresh and window.evaluations:
            window.frozen = True
        if window.frozen:
            return
        if fresh:
            self._recorder.forget(optimizer)
            window.passes = 0
        window.evaluations = 1
        self._add_pass(optimizer, has_added, alone=True)

    def _add_pass(self, optimizer: int, has_added: Callable[[int], bool], *, alone: bool) -> None:
        window = self._windows[optimizer]
        if not window.passes:
            self._begin(optimizer)
            window.is_carried = window.has_stepped and has_added(optimizer)
        # Stepped and zeroed within the pass: the step itself was the point.
        if self._measure(optimizer, Point.BACKWARD):
            self._skipped.note_pass(optimizer)
            window.passes += 1
            window.alone = window.alone or alone

    def _begin(self, optimizer: int) -> None:
        window = self._windows[optimizer]
        window.step = self._steps.next_of(optimizer)
        window.alone, window.training = False, self._is_training()
        window.collected, window.is_micro_batch = 0, False
        window.stepped_before = self._num_stepped

    def _measure(self, optimizer: int, point: Point) -> bool:
        """Measure if the step is due; False if there was nothing to measure."""
        step = self._windows[optimizer].step
        if self._recorder.is_wanted(optimizer, step):
            return self._recorder.measure(optimizer, step, point)
        self._recorder.observed.pass_over()
        return True

    def _settle(self, optimizer: int) -> None:
        """End a window without a step: it was skipped, or never meant to be taken.

        Gradients that another optimizer's pass left behind (a generator's pass runs through the
        discriminator), and those of a model in evaluation mode, are no training step.
        """
        window = self._windows[optimizer]
        by_product = self._num_stepped > window.stepped_before and not window.alone
        if window.training and not by_product:
            self._report(optimizer, taken=False)
        else:
            self._recorder.forget(optimizer)
            window.passes = window.restarts = 0

    def _report(self, optimizer: int, *, taken: bool, is_plain: bool = False) -> Rest | None:
        window = self._windows[optimizer]
        step, part = self._number(optimizer, taken=taken)
        if taken:
            window.usual_restarts, window.is_unseen = window.restarts, False
        window.passes = window.evaluations = window.restarts = 0
        window.frozen = window.is_dropped = False
        window.has_stepped = taken
        self._recorder.report(optimizer, step, part, taken=taken, carried=window.is_carried)
        window.is_carried = False
        return self._recorder.end_step(optimizer, may_rest=is_plain)

    def _number(self, optimizer: int, *, taken: bool) -> tuple[int, int]:
        """Return the window's step and which part of it this is; the step is counted."""
        opened = self._windows[optimizer].step
        if not taken and opened < self._steps.step:
            # Known only now; the other optimizers have gone on meanwhile.
            return opened, self._steps.late_part(opened)
        number = self._steps.begin(optimizer)
        self._steps.end(optimizer)
        return number
