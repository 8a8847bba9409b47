"""Samples of a record: each, or with `report_every` those of several steps together."""

from __future__ import annotations

import time
from collections.abc import Callable

from gradwatch._recording.accumulator import SampleAccumulator
from gradwatch._recording.step_sample import StepSample
from gradwatch_wire.names import Scalar


class Reports:
    """Samples on their way to records.

    Args:
        every: Collections per record.
        send: Takes what makes a record.
    """

    def __init__(self, every: int, send: Callable[[StepSample], None]) -> None:
        self._every = every
        self._send_sample = send
        self._kept: dict[int | None, SampleAccumulator] = {}  # since the last record
        self._last_sent: tuple[float, int] | None = None  # when, and which step

    def add(self, sample: StepSample, key: int | None) -> None:
        """Send a record, or keep the sample for the one that is due later.

        Args:
            sample: Of a step, or of a micro-batch.
            key: Samples of one key are put together.
        """
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

    def close(self) -> None:
        """Send what has come together since the last record."""
        for key in list(self._kept):
            self._send(self._kept.pop(key).result())

    def _send(self, sample: StepSample) -> None:
        if sample.part == 0:
            self._add_step_time(sample)
        self._send_sample(sample)

    def _add_step_time(self, sample: StepSample) -> None:
        now, before = time.perf_counter(), self._last_sent
        self._last_sent = (now, sample.step)
        if before is not None and sample.step > before[1]:
            seconds = (now - before[0]) / (sample.step - before[1])
            sample.add_scalar(Scalar.STEP_TIME_S, seconds)
