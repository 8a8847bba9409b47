"""Samples of a record: each, or with `report_every` those of several steps together."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from gradwatch._pending.events import PendingSkip
from gradwatch._pending.record import PendingRecord
from gradwatch._pending.stats import PendingStats, SeenSteps, StatsFrame
from gradwatch._recording.accumulator import SampleAccumulator
from gradwatch._recording.readback import Readback
from gradwatch._recording.step_history import NO_HISTORY, StepHistory, TakenHistory
from gradwatch._recording.step_sample import StepSample
from gradwatch_wire import Manifest
from gradwatch_wire.names import Scalar


class Reports:
    """Samples on their way to records."""

    def __init__(
        self,
        every: int,
        readback: Readback,
        history: StepHistory,
        take_manifests: Callable[[], list[Manifest]],
        put: Callable[[PendingRecord], None],
    ) -> None:
        self._every = every
        self._readback = readback
        self._history = history
        self._take_manifests = take_manifests
        self._put = put
        self.seen_steps = SeenSteps()
        self._kept: dict[int | None, SampleAccumulator] = {}  # since the last record
        self._last_sent: tuple[float, int] | None = None  # when, and which step

    def add(self, sample: StepSample, key: int | None) -> None:
        """Send a record, or keep the sample for the one that is due later."""
        if self._every == 1 and sample.is_complete and key not in self._kept:
            self._send(sample)
            return
        kept = self._kept.get(key)
        if kept is not None and kept.latest.manifest_id != sample.manifest_id:
            self._send(kept.result())
            kept = None
        if kept is None:
            kept = self._kept[key] = SampleAccumulator(sample)
        kept.add(sample)
        if kept.num_steps >= self._every:
            self._send(self._kept.pop(key).result())

    def tell_skip(self, optimizer: int, sample: StepSample, found_inf: list[Tensor]) -> None:
        """Send an EVENT if a GradScaler skipped the step: it does if anything is non-finite."""
        scale = sample.device_scalars.get(Scalar.LOSS_SCALE)
        if scale and found_inf:
            values = self._readback.start([scale[0], *found_inf])
            self._put(PendingSkip(sample.step, optimizer, values))

    def close(self) -> None:
        """Send what has come together since the last record."""
        for key in list(self._kept):
            self._send(self._kept.pop(key).result())

    def _send(self, sample: StepSample) -> None:
        if sample.part == 0:
            self._add_step_time(sample)
        history = self._history.take(sample.step)
        if self._every > 1:
            history = history._replace(batch="")  # the record is of other batches as well
        pending = pending_stats(sample, self._readback, self.seen_steps, history)
        pending.manifests = self._take_manifests()  # not before: that may have raised
        self._put(pending)

    def _add_step_time(self, sample: StepSample) -> None:
        now, before = time.perf_counter(), self._last_sent
        self._last_sent = (now, sample.step)
        if before is not None and sample.step > before[1]:
            seconds = (now - before[0]) / (sample.step - before[1])
            sample.add_scalar(Scalar.STEP_TIME_S, seconds)


def pending_stats(
    sample: StepSample,
    readback: Readback,
    seen_steps: SeenSteps,
    history: TakenHistory = NO_HISTORY,
) -> PendingStats:
    """Enqueue the copies of all numbers of a sample; it may be changed afterwards."""
    columns, scalars, values = [], [], []
    for device, column in sample.columns.items():
        for name, numbers in column.items():
            columns.append((name, sample.places[device]))
            values.append(numbers)
    for name, tensors in sample.device_scalars.items():
        scalars += [name] * len(tensors)
        values += tensors
    losses = list(history.late_losses.values())
    if losses:
        values.append(torch.stack([loss.to(losses[0].device) for loss in losses]))
    if sample.outputs is not None:
        values += sample.outputs.tensors()
    values += sample.found_inf
    # Not the sample itself: its tensors would stay on the device until the record is made.
    frame = StatsFrame(
        step=sample.step,
        manifest_id=sample.manifest_id,
        num_layers=len(sample.layers),
        part=sample.part,
        parts=sample.parts,
        num_pieces=sample.num_pieces,
        labels=sample.labels,
        columns=columns,
        scalars=scalars,
        known=sample.scalars,
        scaled=sample.scaled,
        outputs=None if sample.outputs is None else sample.outputs.reader(),
        quiet_step=history.quiet_step,
        batch=history.batch,
        history=history.rows,
        late_losses=list(history.late_losses),
    )
    return PendingStats(frame, readback.start(values, sample.packed), seen_steps)
