"""Between two reports: what several collections have in common, kept on the device.

With `report_every` above 1, or with micro-batches, several collections make one record. It has the
numbers of the last of them, and besides the largest and the mean norm of each layer over all, so
that an explosion in an early batch is not lost.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradwatch._recording.collection import Sample
from gradwatch_wire.records import LabelValue


@dataclass(slots=True)
class StepSample:
    """One collection, as it goes into a record."""

    step: int
    manifest_id: int
    num_layers: int
    taken: Sample
    labels: dict[str, LabelValue]
    numbers: dict[str, float]
    tensors: dict[str, list[Tensor]]
    part: int
    parts: int


class Running:
    """Collections of one manifest since the last record."""

    def __init__(self, first: StepSample) -> None:
        self.latest = first
        self.collections = 0
        self.steps = 0
        self._largest: dict[torch.device, Tensor] = {}  # (layers,) float64, NaN once there was one
        self._total: dict[torch.device, Tensor] = {}  # (layers,) float64
        self._local: dict[torch.device, Tensor] = {}  # (layers,) float64
        self._first_bad: Tensor | None = None  # 0-d float64, the step, NaN before there was one
        self._probe: list[Tensor] = []
        self._loss: Tensor | float = 0.0
        self._weight = 0.0

    def add(self, moment: StepSample, *, is_step: bool) -> None:
        """Take in a collection; one within a step does not count towards the report."""
        self.latest = moment
        self.collections += 1
        self.steps += is_step
        for device, values in moment.taken.values.items():
            self._add_norms(device, values, moment.step)
        if probe := moment.tensors.get("local_probe"):
            self._probe = _added(self._probe, probe)
        weight = moment.numbers.get("batch_size", 1.0)
        for loss in (moment.numbers.get("loss"), *moment.tensors.get("loss", ())):
            if loss is not None:
                self._loss = self._loss + loss * weight
                self._weight += weight

    def _add_norms(self, device: torch.device, values: dict[str, Tensor], step: int) -> None:
        norms = values["l2"]
        if device not in self._largest:
            self._largest[device] = norms.clone()
            self._total[device] = norms.clone()
        else:
            self._largest[device] = torch.maximum(self._largest[device], norms)
            self._total[device] += norms
        if "local_l2" in values:
            known = self._local.get(device, values["local_l2"])
            self._local[device] = torch.maximum(known, values["local_l2"])
        # Several devices of one process: the first of them is enough to date the trouble.
        if self._first_bad is None:
            self._first_bad = norms.new_full((), torch.nan)
        bad = (~norms.isfinite().all()).to(self._first_bad.device, non_blocking=True)
        self._first_bad.masked_fill_(bad & self._first_bad.isnan(), float(step))

    def close(self) -> StepSample:
        """Return the last collection with what all of them came to."""
        latest = self.latest
        if self.collections == 1:
            return latest
        for device, values in latest.taken.values.items():
            values["l2_max"] = self._largest[device]
            values["l2_mean"] = self._total[device] / self.collections
            if device in self._local:
                values["local_l2"] = self._local[device]
        latest.numbers["collections"] = float(self.collections)
        if self._first_bad is not None:
            latest.tensors["first_nonfinite_step"] = [self._first_bad]
        if self._probe:
            latest.tensors["local_probe"] = self._probe
        self._put_loss(latest)
        return latest

    def _put_loss(self, latest: StepSample) -> None:
        if not self._weight:
            return
        mean = self._loss / self._weight
        if "batch_size" in latest.numbers:
            latest.numbers["batch_size"] = self._weight
        latest.numbers.pop("loss", None)
        if isinstance(mean, Tensor):
            latest.tensors["loss"] = [mean]
        else:
            latest.numbers["loss"] = mean


def _added(some: list[Tensor], more: list[Tensor]) -> list[Tensor]:
    """Add up 0-d tensors by device: a NaN in any is one in the sum."""
    sums: dict[torch.device, Tensor] = {}
    for tensor in (*some, *more):
        sums[tensor.device] = sums[tensor.device] + tensor if tensor.device in sums else tensor
    return list(sums.values())
