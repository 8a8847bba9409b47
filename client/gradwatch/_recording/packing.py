"""From a sample to the STATS record that waits for its numbers."""

from __future__ import annotations

from gradwatch._pending.stats import PendingStats, StatsFrame
from gradwatch._recording.readback import Readback
from gradwatch._recording.step_sample import StepSample


def pending_stats(sample: StepSample, readback: Readback) -> PendingStats:
    """Enqueue the copies of all numbers of a sample; it may be changed afterwards.

    Args:
        sample: What the record is made of.
        readback: Copies its numbers.
    """
    columns, scalars, values = [], [], []
    for device, own in sample.columns.items():
        for name, numbers in own.items():
            columns.append((name, sample.places[device]))
            values.append(numbers)
    for name, tensors in sample.device_scalars.items():
        scalars += [name] * len(tensors)
        values += tensors
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
    )
    return PendingStats(frame, readback.start(values, sample.packed))
