"""The recorder: told where in the training step it is, it makes a record of what is due.

It knows no hook. Hooks, and `Watch.collect`, tell it of the points they see; observers add what
they saw between two of them; it counts the steps, and hands records over to be sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

import torch
from torch import Tensor

from gradwatch._faults import Faults
from gradwatch._recording.accumulator import SampleAccumulator
from gradwatch._recording.config import WatchConfig
from gradwatch._recording.observer import Observer
from gradwatch._recording.pending import PendingRecord
from gradwatch._recording.sampler import GradientSampler
from gradwatch._recording.stats import PendingStats
from gradwatch._recording.step_counter import StepCounter
from gradwatch._recording.step_sample import StepSample
from gradwatch_wire.names import Point, Scalar

Scalars: TypeAlias = Mapping[str, Tensor | float | None]

_NO_SCALARS: Final[Scalars] = MappingProxyType({})


class Recorder:
    """Everything here runs in the training thread and only enqueues; nothing raises.

    Args:
        config: How often to collect and to report.
        sampler: Reads the gradients.
        observers: Add to its samples.
        put: Takes what is to be sent.
        faults: Where errors end.

    Attributes:
        num_collected: Steps collected so far.
    """

    def __init__(
        self,
        config: WatchConfig,
        sampler: GradientSampler,
        observers: Sequence[Observer],
        put: Callable[[PendingRecord], None],
        faults: Faults,
    ) -> None:
        self.num_collected = 0
        self.put = put
        self._config = config
        self._sampler = sampler
        self._observers = observers
        self._faults = faults
        self._steps = StepCounter(len(config.optimizers))
        self._accumulators: dict[int | None, SampleAccumulator] = {}
        self._last_sent: tuple[float, int] | None = None  # when, and which step

    @property
    def step(self) -> int:
        """The optimizer step that is under way."""
        return self._steps.step

    def collect(
        self, step: int | None, scalars: Callable[[], Scalars], *, micro_batch: bool
    ) -> None:
        """Collect all layers here, where the training script asks for it.

        Args:
            step: Number of the step, None to count.
            scalars: Returns numbers of the whole step; called only if the step is due.
            micro_batch: Whether the step's gradients are not complete yet.
        """
        try:
            number = self._steps.on_micro_batch() if micro_batch else self._steps.on_collect(step)
            if self._is_due(number):
                self._record(number, Point.COLLECT, is_complete=not micro_batch, scalars=scalars())
            # After a step's collection the next backward pass is that of the next step.
            self._activate(number + (not micro_batch))
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("collect", repr(error))

    def before_optimizer(self, number: int) -> None:
        """Collect what one optimizer is about to use, unless `collect` has."""
        try:
            due = self._steps.before_optimizer(number)
            if due is not None and self._is_due(due[0]):
                self._record(due[0], Point.OPTIMIZER_STEP, number, part=due[1])
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("optimizer step", repr(error))

    def after_optimizer(self, number: int) -> None:
        """Count the step that one optimizer takes, or would have taken."""
        self._steps.after_optimizer(number)
        self._activate(self._steps.step)

    def disable(self) -> None:
        """Let no observer measure from here on: this process is a fork of the one that trains."""
        for observer in self._observers:
            observer.active = False

    def close(self) -> None:
        """Send what has come together since the last report, and stop observing."""
        try:
            for key in list(self._accumulators):
                self._send(self._accumulators.pop(key).result())
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("close", repr(error))
        self._sampler.close()
        for observer in self._observers:
            observer.close()

    def _is_due(self, step: int) -> bool:
        return step % self._config.every == 0

    def _activate(self, step: int) -> None:
        """Let observers measure the next backward pass if the step it belongs to is due."""
        due = self._is_due(step)
        for observer in self._observers:
            observer.active = due

    @torch.no_grad()
    def _record(
        self,
        step: int,
        point: Point,
        optimizer: int | None = None,
        *,
        part: int = 0,
        is_complete: bool = True,
        scalars: Scalars = _NO_SCALARS,
    ) -> None:
        """Collect the gradients as they are; see `GradientSampler.sample`."""
        sample = self._sampler.sample(step, point, optimizer, part=part, is_complete=is_complete)
        if sample is None:
            return
        for name, value in scalars.items():
            sample.add_scalar(name, value)
        for observer in self._observers:
            observer.contribute(sample)
        self._report(sample, optimizer)
        if is_complete and part == 0:
            self.num_collected += 1
            for observer in self._observers:
                observer.after_step(sample)

    def _report(self, sample: StepSample, optimizer: int | None) -> None:
        """Send a record, or keep the sample for the one that is due later."""
        key = optimizer if len(self._config.optimizers) > 1 else None
        if key is not None and self._accumulators.pop(None, None) is not None:
            why = "with several optimizers the step has to be collected by collect(), too"
            self._faults.note("micro_batch", why)
        report_every = self._config.report_every
        if report_every == 1 and sample.is_complete and key not in self._accumulators:
            self._send(sample)
            return
        kept = self._accumulators.get(key)
        if kept is not None and kept.latest.manifest_id != sample.manifest_id:
            self._send(kept.result())
            kept = None
        if kept is None:
            kept = self._accumulators[key] = SampleAccumulator(sample)
        kept.add(sample)
        if kept.num_steps >= report_every:
            self._send(self._accumulators.pop(key).result())

    def _send(self, sample: StepSample) -> None:
        if sample.part == 0:
            self._add_step_time(sample)
        self.put(PendingStats(sample, self._sampler.take_manifests()))

    def _add_step_time(self, sample: StepSample) -> None:
        now, before = time.perf_counter(), self._last_sent
        self._last_sent = (now, sample.step)
        if before is not None and sample.step > before[1]:
            seconds = (now - before[0]) / (sample.step - before[1])
            sample.add_scalar(Scalar.STEP_TIME_S, seconds)
