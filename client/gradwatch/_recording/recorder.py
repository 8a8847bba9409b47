"""The recorder: told where in the training step it is, it makes a record of what is due.

It knows no hook. `StepWindows` tells it which passes belong to which step; observers add what they
saw between two measurements; records are handed over to be sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from gradwatch._faults import Faults, tell
from gradwatch._pending.events import PendingPace
from gradwatch._pending.record import PendingRecord
from gradwatch._recording.accumulator import DeferredLosses, SampleAccumulator
from gradwatch._recording.config import WatchConfig
from gradwatch._recording.loss_scale import ScaleSettlement, tell_unknown_scale
from gradwatch._recording.observed_sampler import ObservedSampler
from gradwatch._recording.observer import Observer
from gradwatch._recording.readback import Readback
from gradwatch._recording.reports import Reports
from gradwatch._recording.sampler import GradientSampler
from gradwatch._recording.schedule import Rest, Schedule
from gradwatch._recording.step_counter import StepCounter
from gradwatch._recording.step_history import Scalars, StepHistory, is_bad, loss_in, on_host
from gradwatch._recording.step_sample import StepSample
from gradwatch._recording.updates import WeightUpdates
from gradwatch._recording.windows import StepWindows
from gradwatch._statistics.capture import in_capture
from gradwatch._statistics.sentinel import Alarms
from gradwatch_wire.names import Label, Point

_UNSEEN: Final = (
    "no backward pass was seen before an optimizer's step, whose gradients were read as it began: "
    "these norms may be after clipping; call collect() before it"
)
_NOT_OPEN: Final = (
    "called where no backward pass waits for its optimizer's step, and left out; "
    "call it between backward() and step()"
)
_SEVERAL: Final = "called several times in one optimizer step: its record has the last numbers"


class Recorder:
    """Recorder of one watch: it runs in the training thread, only enqueues, and never raises.

    Attributes:
        history: Steps since the last record, and the batch of the one under way.
    """

    def __init__(
        self,
        config: WatchConfig,
        schedule: Schedule,
        sampler: GradientSampler,
        observers: Sequence[Observer],
        updates: WeightUpdates,
        readback: Readback,
        put: Callable[[PendingRecord], None],
        faults: Faults,
    ) -> None:
        self.num_collected = 0
        self.put = put
        self.observed = ObservedSampler(config, sampler, observers, updates)
        self._config = config
        self._schedule = schedule
        self._rest: Rest | None = None
        self._sampler = sampler
        self._readback = readback
        self._faults = faults
        self._steps = StepCounter(len(config.optimizers))
        self._steps.step = config.first_step
        self.windows = StepWindows(
            self,
            self._steps,
            len(config.optimizers),
            lambda: any(module.training for module in config.modules),
            sampler.loss_scale,
        )
        self._scales = ScaleSettlement(sampler.loss_scale)
        self._passes: dict[int, SampleAccumulator] = {}  # of the open windows
        is_sparse = schedule.is_timed or schedule.pace.every > 1 or config.report_every > 1
        # Of several optimizers, as of a GAN, each has a loss of its own.
        self.history = StepHistory(
            schedule.clock, is_kept=is_sparse, has_one_loss=len(config.optimizers) <= 1
        )
        self._loss_alarms = Alarms()
        self.reports = Reports(
            config.report_every, readback, self.history, sampler.take_manifests, put
        )
        self._deferred = DeferredLosses(config.modules)
        self._given: Scalars = {}
        self._has_bad_loss = False
        self._was_measured = False
        self._activate()

    @property
    def pace(self) -> str:
        """Description of how often steps are measured, and of what that costs."""
        return self._schedule.describe()

    @property
    def main_module(self) -> nn.Module:
        return self._config.modules[0]

    @property
    def step(self) -> int:
        return self._steps.step if self._rest is None else self._rest.step

    @property
    def last_step(self) -> int:
        """The last training step that has ended, -1 if there was none."""
        return self.step - 1 if self.step > self._config.first_step else -1

    def collect(
        self, step: int | None, scalars: Callable[[], Scalars], *, micro_batch: bool
    ) -> None:
        """Collect here, where the training script asks for it.

        Args:
            step: Number of the step, None to count.
        """
        if in_capture(self._faults):
            return
        try:
            self._given = scalars()
            loss, size = loss_in(self._given)
            self._has_bad_loss = self._alarms_at(loss)
            if self._rest is not None and not self._ends_rest(self._rest):
                self._rest.annotate(step, loss, size)
            elif self._config.optimizers:
                if not self._keep_deferred(loss, size):
                    self.windows.collect(step, micro_batch=micro_batch)
                    self.history.note_loss(loss, size)
            else:
                self.history.note_loss(loss, size)
                self._collect_all(step, is_complete=not micro_batch)
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("collect", repr(error))
        finally:
            self._given = {}

    def read_graph(self, loss: object) -> None:
        """Take the order of the layers from a loss that still has its graph, if it is not known."""
        if self._rest is None:
            self._sampler.order.read(loss)

    def annotate(self, step: int | None, loss: Tensor | float | None) -> None:
        """Add to the records of the open windows without measuring anything.

        Args:
            step: Number of the step, None to count.
            loss: Its loss, None if it is not known.
        """
        if in_capture(self._faults):
            return
        with self._faults.noting("annotate"):
            loss = on_host(loss)
            self._has_bad_loss = self._alarms_at(loss)
            if self._rest is not None:
                if not self._ends_rest(self._rest):
                    self._rest.annotate(step, loss, None)
                    return
                self.windows.collect(step, micro_batch=False)
            if self._keep_deferred(loss, None):
                return
            if not self.windows.is_open:
                self._faults.note("annotate", _NOT_OPEN)
            optimizers = self.windows.annotate(step)
            if loss is None or not optimizers:
                return
            self.history.note_loss(loss, None)
            for optimizer in optimizers:
                known = self._known(optimizer, self.windows.step_of(optimizer))
                if known is not None:
                    known.add_loss(loss, None)

    def _alarms_at(self, loss: Tensor | float | None) -> bool:
        """Tell whether to measure the step for its loss, where a budget leaves it out."""
        return self._schedule.is_timed and self._loss_alarms.ring(is_alarming=is_bad(loss))

    def _ends_rest(self, rest: Rest) -> bool:
        """End a rest for a loss that is NaN or Inf; tell whether that was done."""
        if not (self._has_bad_loss and rest.has_pass):
            return False
        rest.end()
        return True

    def _known(self, optimizer: int, step: int) -> SampleAccumulator | None:
        """Return what was measured in a window; with a bad loss that is done now if not before."""
        if self._has_bad_loss and optimizer not in self._passes:
            self.measure(optimizer, step, Point.COLLECT)
        return self._passes.get(optimizer)

    def _keep_deferred(self, loss: Tensor | float | None, batch_size: float | None) -> bool:
        """Keep the loss that was given if its pass is one that leaves no gradient yet."""
        if loss is None or self.windows.is_open or not self._deferred.keep(loss, batch_size):
            return False
        self.history.note_loss(loss, batch_size)
        return True

    def measure(self, optimizer: int, step: int, point: Point) -> bool:
        """Measure the gradients of an optimizer, as one more pass of its window."""
        if self._schedule.is_settling:
            self._look(optimizer, 0, 1)  # what it costs, and what is usual
        try:
            sample = self.observed.sample(optimizer, step, point)
            if sample is None:
                return False
            self._scales.correct(sample, optimizer, point)
            known = self._passes.get(optimizer)
            if known is None or known.latest.manifest_id != sample.manifest_id:
                known, earlier = SampleAccumulator(sample), known
                if earlier is not None:
                    known.take_losses(earlier)
                else:
                    self._deferred.add_to(known)
            known.add(sample)
            self._passes[optimizer] = known
            if point == Point.OPTIMIZER_STEP and not self._config.is_autograd_compiled:
                self._faults.tell_once("after clipping", _UNSEEN)
        except Exception as error:  # noqa: BLE001 - costs the record, not the count of the steps
            self._faults.note("measure", repr(error))
        return True

    def begin_step(self, optimizer: int, *, has_closure: bool) -> None:
        """Settle whether what was measured carried a loss scale: it is known from here on."""
        known = self._passes.get(optimizer)
        self._scales.begin_step(optimizer, known, has_closure=has_closure)
        if known is not None:
            self.observed.begin_step(optimizer, known.latest)
        elif has_closure and self._schedule.is_due(step := self.windows.step_of(optimizer)):
            self.observed.begin_closure(optimizer, step)

    def forget(self, optimizer: int) -> None:
        """Drop what was measured in the window."""
        self._passes.pop(optimizer, None)
        self.history.forget_loss()

    def add_scalars(self, optimizer: int, step: int, *, is_another: bool) -> None:
        """Add what `collect` was given, and measure anew what was changed since the pass."""
        known = self._known(optimizer, step)
        if known is None:
            return
        if self._sampler.is_changed(known.latest):
            self._measure_again(known, optimizer, step, is_another=is_another)
        known.latest.step = step
        known.latest.labels[Label.POINT] = Point.COLLECT
        loss, size = loss_in(self._given)
        if loss is not None:
            known.add_loss(loss, size)

    def _measure_again(
        self, known: SampleAccumulator, optimizer: int, step: int, *, is_another: bool
    ) -> None:
        again = self.observed.sample_again(optimizer, step)
        if again is None:
            return
        if is_another:
            known.add(again)
        else:
            known.replace_latest(again)
            self._sampler.tell_changed()

    def collected_again(self) -> None:
        """Tell that `collect` was called several times in one step."""
        self._faults.note("collect", _SEVERAL)

    def report(self, optimizer: int, step: int, part: int, *, taken: bool, carried: bool) -> None:
        """Send what was measured in the window, or keep it for the record that is due later."""
        known = self._passes.pop(optimizer, None)
        self._was_measured = known is not None
        if part == 0:
            self._end_row(step, is_skipped=not taken)
        if known is not None:
            try:
                known.latest.labels |= {Label.CARRIED: True} if carried else {}
                self._report_passes(known, optimizer, (step, part), taken=taken)
            except Exception as error:  # noqa: BLE001 - costs the record, not the count of the steps
                self._faults.note("record", repr(error))
        self._deferred.clear()
        self._sampler.order.end_step()
        self._activate()

    def _end_row(self, step: int, *, is_skipped: bool) -> None:
        self.history.end_step(
            step, self._config.optimizers, was_measured=self._was_measured, is_skipped=is_skipped
        )

    @torch.no_grad()
    def _report_passes(
        self, known: SampleAccumulator, optimizer: int, number: tuple[int, int], *, taken: bool
    ) -> None:
        sample = known.result()
        sample.complete(*number, taken=taken)
        if sample.labels[Label.SCALED] is None:
            tell_unknown_scale(sample.step, self._faults)
        found_inf = self._sampler.loss_scale.found_inf(optimizer, taken=taken)
        self.reports.tell_skip(optimizer, sample, found_inf)
        sample.found_inf = found_inf if taken else []
        self.observed.end_step(optimizer, sample, taken=taken)
        self.reports.add(sample, optimizer if len(self._config.optimizers) > 1 else None)
        if sample.part == 0:
            self._count(sample, taken=taken)

    def is_wanted(self, optimizer: int, step: int) -> bool:
        """Tell whether a pass is to be measured: its step is due, or its gradients are alarming."""
        if self._schedule.is_due(step) or optimizer in self._passes:
            return True
        part = self._schedule.slice_of(step)
        if part is None:
            return False
        is_alarming = self._look(optimizer, *part)
        if part[1] == 1 and self._sampler.sentinel.alarms.count == 0:
            self.history.quiet_step = step
        return is_alarming

    def _look(self, optimizer: int, part: int, slices: int) -> bool:
        """Let the sentinel look at a part of the gradients; tell whether they are alarming."""
        if not self._sampler.is_on_cpu:
            return False
        began_s = self._schedule.clock()
        self.observed.refresh()  # else a layer that was replaced would pass for one that is quiet
        is_alarming = self._sampler.sentinel.is_alarming(optimizer, part, slices)
        self._schedule.add_look(self._schedule.clock() - began_s, is_whole=slices == 1)
        return is_alarming

    def end_step(self, optimizer: int, *, may_rest: bool) -> Rest | None:
        """Note that a window has ended, and return the steps that are to be counted only, if any.

        Args:
            may_rest: Whether the window is one that can be only counted.
        """
        if not self._schedule.is_timed:
            return None
        may_rest = may_rest and self._schedule.pace.rests and not self.observed.has_observers
        may_rest = may_rest and self._sampler.is_settled(optimizer)
        before = self._schedule.pace, self._schedule.wanted
        self._rest = self._schedule.end_step(
            self._steps.step, was_due=self._was_measured, may_rest=may_rest
        )
        if (self._schedule.pace, self._schedule.wanted) != before:
            tell(logging.INFO, f"from step {self.step} on: {self.pace}")
            self.put(PendingPace(self.step, self._schedule.wanted, self.pace))
        return self._rest

    def wake(self, rest: Rest) -> None:
        """Go on after steps that were only counted."""
        self._rest = None
        self.history.add(rest.rows)
        for loss, size in rest.loss.given:  # of passes whose step goes on
            self._deferred.add(loss, size)
            self.history.note_loss(loss, size)
        self.windows.resume(rest)
        self._schedule.wake(rest)

    def is_bad(self, *, wait: bool) -> bool | None:
        """Tell whether a gradient of the step under way is NaN or Inf; None if it is not known."""
        found = [self._is_bad(optimizer, wait=wait) for optimizer in self.windows.open]
        return True if True in found else None if None in found or not found else False

    def _is_bad(self, optimizer: int, *, wait: bool) -> bool | None:
        known = self._passes.get(optimizer)
        if known is not None:
            return known.latest.is_bad(wait=wait)
        is_quiet = self.history.quiet_step == self.windows.step_of(optimizer)
        return False if is_quiet else None

    def close(self) -> None:
        """Send what has come together since the last report, and stop observing."""
        try:
            with torch.no_grad():
                self.windows.close()
            self.reports.close()
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("close", repr(error))
        self.observed.close()
        self._readback.close()

    def _collect_all(self, step: int | None, *, is_complete: bool) -> None:
        """Collect all layers; without optimizers each such call is a step."""
        if step is not None:
            self._steps.step = step
        number = self._steps.step
        is_due = self._schedule.is_due(number)
        sample = self.observed.sample(None, number, Point.COLLECT) if is_due else None
        self._was_measured = sample is not None
        if is_complete:
            self._end_row(number, is_skipped=False)
        if sample is not None:
            sample.is_complete = is_complete
            for name, value in self._given.items():
                sample.add_scalar(name, value)
            self.reports.add(sample, None)
            if is_complete:
                self._count(sample, taken=True)
        if is_complete:
            self._steps.advance()
            self._sampler.order.end_step()
        self._activate()

    def _count(self, sample: StepSample, *, taken: bool) -> None:
        self.num_collected += 1
        if taken:
            self.observed.count(sample)

    def _activate(self) -> None:
        """Let observers measure the next backward pass if the step it belongs to is due."""
        if not self.observed.has_observers:
            return
        steps = [self.windows.step_of(n) for n in range(len(self._config.optimizers))]
        steps = steps or [self._steps.step]
        self.observed.activate(
            due=any(map(self._schedule.is_due, steps)),
            looked_at=any(self._schedule.slice_of(step) is not None for step in steps),
        )
