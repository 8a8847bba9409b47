"""Between two records: what several samples have in common, kept on the devices.

With `report_every` above 1, or with micro-batches, several samples make one record. It has the
numbers of the last of them, and besides the largest and the mean norm of each layer over all, so
that an explosion in an early batch is not lost. What the rank shows of itself (its probe, its loss)
is that of the first sample with anything non-finite: later ones may have it from other ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from gradwatch._layers.sharded_parameters import has_unreduced
from gradwatch._recording.magnitudes import OutputMagnitudes
from gradwatch._recording.step_sample import StepSample
from gradwatch._statistics.devices import meet
from gradwatch._statistics.digest import digest_in
from gradwatch_wire.columns import L2, L2_MAX, L2_MEAN, LOCAL_L2
from gradwatch_wire.names import Scalar


class SampleAccumulator:
    """Samples of one manifest since the last record, the first of which is given."""

    def __init__(self, first: StepSample) -> None:
        self.latest = first
        self.num_samples = 0
        self.num_steps = 0
        self._first: tuple[StepSample, int] | None = None  # while it is the only one
        self._largest: dict[torch.device, Tensor] = {}  # (layers,) float64, NaN once there was one
        self._total: dict[torch.device, Tensor] = {}  # (layers,) float64
        self._local: dict[torch.device, Tensor] = {}  # (layers,) float64
        self._first_bad: Tensor | None = None  # 0-d float64, the step, NaN before there was one
        self._outputs: OutputMagnitudes | None = None
        self._digests: dict[torch.device, dict[str, Tensor]] = {}  # the newest
        self._probe = _OfFirstBad()
        self._first_loss = _OfFirstBad()
        self._has_losses = True
        self._steps: set[int] = set()
        self._loss: Tensor | float | None = None  # the only one, or the weighted sum of several
        self._num_losses = 0
        self._weight = 0.0
        self._has_sizes = False

    def add(self, sample: StepSample) -> None:
        """Take in a sample; one within a step does not count towards the record."""
        self.latest = sample
        count = int(sample.scalars.pop(Scalar.COLLECTIONS, 1))
        if not self.num_samples:
            self._first = sample, count  # most records have one sample, which is sent as it is
        else:
            self._merge_first()
            self._merge(sample, count)
        self.num_samples += count
        self.num_steps += sample.is_complete
        weight = sample.scalars.get(Scalar.BATCH_SIZE)
        on_device = sample.device_scalars.get(Scalar.LOSS, ())
        for loss in (sample.scalars.get(Scalar.LOSS), *on_device):
            if loss is not None:
                self.add_loss(loss, weight)

    def replace_latest(self, sample: StepSample) -> None:
        """Put a later measurement of the same pass in place of the last sample.

        What was seen during the pass itself stays.
        """
        if set(sample.layers) <= set(self.latest.layers):
            _keep_local(self.latest, sample)
        if self.num_samples == 1:
            self.__init__(sample)  # type: ignore[misc]  # as new
            self.add(sample)
        else:
            self.latest = sample

    def mark_scaled(self) -> None:
        """Note that all samples carry the loss scale, a device scalar of the last."""
        self.latest.mark_scaled()
        for norms in (self._largest, self._total, self._local):
            for device in norms:
                norms[device] = self.latest.unscaled(L2, norms[device])

    def remove_scale(self) -> None:
        """Note that no sample carries the loss scale that was thought to be in all of them."""
        for scale in self.latest.device_scalars.pop(Scalar.LOSS_SCALE):
            for norms in (self._largest, self._total, self._local):
                for device in norms:
                    own, factor = meet(norms[device], scale)
                    norms[device] = own * factor
        self.latest.scaled.clear()

    def add_loss(self, loss: Tensor | float, batch_size: float | None) -> None:
        """Take in the loss of a batch; the mean is weighted by the batches' sizes."""
        weight = 1.0 if batch_size is None else batch_size
        # A copy: the script may go on writing to its own.
        own = self.latest.copied(loss) if isinstance(loss, Tensor) else loss
        self._add_losses(own, 1, weight)
        self._has_sizes = self._has_sizes or batch_size is not None

    def take_losses(self, earlier: SampleAccumulator) -> None:
        """Take over the losses of samples whose layers were others."""
        if earlier._loss is not None:
            self._add_losses(earlier._loss, earlier._num_losses, earlier._weight)
        self._has_sizes = self._has_sizes or earlier._has_sizes

    def _add_losses(self, loss: Tensor | float, number: int, weight: float) -> None:
        if self._loss is None:
            self._loss = loss
        else:
            known = _weighted(self._loss, self._num_losses, self._weight)
            self._loss = known + _weighted(loss, number, weight)
        self._num_losses += number
        self._weight += weight

    def _merge_first(self) -> None:
        if self._first is not None:
            sample, count = self._first
            self._first = None
            self._merge(sample, count)

    def _merge(self, sample: StepSample, count: int) -> None:
        was_bad = None if self._first_bad is None else ~self._first_bad.isnan()
        # Accelerators first: there the numbers of several devices meet.
        for device in sorted(sample.columns, key=_is_cpu):
            self._add_norms(device, sample, count)
        self._steps.add(sample.step)
        probe = sample.device_scalars.get(Scalar.LOCAL_PROBE, ())
        self._probe.add([sample.unscaled(Scalar.LOCAL_PROBE, each) for each in probe], was_bad)
        self._keep_loss(sample, was_bad)
        if sample.outputs is not None:
            self._outputs = self._outputs or sample.outputs.empty()
            self._outputs.add(sample.outputs, sample.step)

    def _add_norms(self, device: torch.device, sample: StepSample, count: int) -> None:
        """Take in the norms of one device. They are unscaled here: scales change between steps."""
        columns = sample.columns[device]
        if digest := digest_in(columns):
            self._digests[device] = digest
        if L2_MAX in columns:  # the sample stands for several passes itself
            largest, mean = columns[L2_MAX], columns[L2_MEAN]
        else:
            largest = mean = sample.unscaled(L2, columns[L2])
        if device not in self._largest:
            self._largest[device] = largest
            self._total[device] = mean * count
        else:
            self._largest[device] = torch.maximum(*meet(self._largest[device], largest))
            self._total[device] = torch.add(*meet(self._total[device], mean * count))
        if LOCAL_L2 in columns:
            local = sample.unscaled(LOCAL_L2, columns[LOCAL_L2])
            known = self._local.get(device)
            self._local[device] = local if known is None else _larger_known(*meet(known, local))
        # Several devices of one process: the first of them is enough to date the trouble.
        if self._first_bad is None:
            self._first_bad = largest.new_full((), torch.nan)
        bad, before = meet(~largest.isfinite().all(), self._first_bad)
        self._first_bad = before.masked_fill(bad & before.isnan(), float(sample.step))

    def result(self) -> StepSample:
        """Return the last sample with what all of them came to; nothing is added after that."""
        latest = self.latest
        self._put_loss(latest)
        if self.num_samples == 1:
            return latest
        self._merge_first()
        for device, columns in latest.columns.items():
            columns[L2_MAX] = self._largest[device]
            columns[L2_MEAN] = self._total[device] / self.num_samples
            if device in self._local:
                columns[LOCAL_L2] = self._local[device]
            columns.update(self._digests.get(device, {}))
        latest.scaled -= {LOCAL_L2, Scalar.LOCAL_PROBE}  # they are of all samples now
        latest.scalars[Scalar.COLLECTIONS] = float(self.num_samples)
        if self._first_bad is not None:
            latest.device_scalars[Scalar.FIRST_NONFINITE_STEP] = [self._first_bad]
        if probe := self._probe.tensors:
            latest.device_scalars[Scalar.LOCAL_PROBE] = probe
        if self._has_losses and len(self._steps) > 1:
            latest.device_scalars[Scalar.FIRST_NONFINITE_LOSS] = self._first_loss.tensors
        latest.outputs = self._outputs
        return latest

    def _keep_loss(self, sample: StepSample, was_bad: Tensor | None) -> None:
        """Keep a sample's loss if it is that of the first bad step; within a step none is apart."""
        losses = sample.device_scalars.get(Scalar.LOSS, [])
        if Scalar.LOSS in sample.scalars and self._first_bad is not None:
            losses = [self._first_bad.new_full((), sample.scalars[Scalar.LOSS])]
        self._has_losses = self._has_losses and bool(losses)
        self._first_loss.add(losses, was_bad)

    def _put_loss(self, latest: StepSample) -> None:
        if self._loss is None or not self._weight:
            return
        if self._has_sizes:
            latest.scalars[Scalar.BATCH_SIZE] = self._weight
        latest.scalars.pop(Scalar.LOSS, None)
        latest.device_scalars.pop(Scalar.LOSS, None)
        mean = self._loss if self._num_losses == 1 else self._loss / self._weight
        latest.add_scalar(Scalar.LOSS, mean)


class DeferredLosses:
    """Losses of backward passes that leave no gradient yet.

    Under FSDP2 with `set_requires_gradient_sync(False)` the shards get their gradient in the last
    pass of a step. The losses of the passes before it wait here for the window of that pass.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._losses: list[tuple[Tensor | float, float | None]] = []

    def keep(self, loss: Tensor | float, batch_size: float | None) -> bool:
        """Keep a loss if its pass reduced nothing; tell whether it was kept."""
        if not has_unreduced(module for top in self._modules for module in top.modules()):
            return False
        self.add(loss, batch_size)
        return True

    def add(self, loss: Tensor | float, batch_size: float | None) -> None:
        self._losses.append((loss, batch_size))

    def add_to(self, known: SampleAccumulator) -> None:
        """Give the losses to the window of the pass that has reduced."""
        for loss, batch_size in self._losses:
            known.add_loss(loss, batch_size)

    def clear(self) -> None:
        """Forget the losses: their step is over."""
        self._losses.clear()


def _weighted(loss: Tensor | float, number: int, weight: float) -> Tensor | float:
    """Return a loss times its weight; several have been added up with theirs."""
    return loss * weight if number == 1 and weight != 1.0 else loss


class _OfFirstBad:
    """A number of the first sample with anything non-finite; of the last before there is one."""

    def __init__(self) -> None:
        self._kept: dict[torch.device, Tensor] = {}

    @property
    def tensors(self) -> list[Tensor]:
        """Sum that becomes the number: 0-d, one per device; none if it is not known."""
        return list(self._kept.values())

    def add(self, tensors: Sequence[Tensor], was_bad: Tensor | None) -> None:
        """Take in a sample's number.

        Args:
            tensors: What is added up to it, 0-d; a sample after the first may have none.
            was_bad: Whether there was a bad sample before, 0-d; None of the first sample.
        """
        for tensor in _added(tensors):
            if was_bad is None:
                self._kept[tensor.device] = tensor
            elif (kept := self._kept.get(tensor.device)) is not None:
                bad, own = meet(was_bad, tensor)
                bad, kept = meet(bad, kept)
                self._kept[tensor.device] = torch.where(bad, kept, own)


def _is_cpu(device: torch.device) -> bool:
    return device.type == "cpu"


def _keep_local(known: StepSample, sample: StepSample) -> None:
    sample.outputs = known.outputs
    if probe := known.device_scalars.get(Scalar.LOCAL_PROBE):
        sample.device_scalars[Scalar.LOCAL_PROBE] = probe
    for device, places in sample.places.items():
        columns = known.columns[device]
        kept = digest_in(columns) | {name: columns[name] for name in {LOCAL_L2} & columns.keys()}
        of_layer = {known.layers[place]: at for at, place in enumerate(known.places[device])}
        order = [of_layer[sample.layers[place]] for place in places]
        if kept and order != list(range(len(of_layer))):  # a new measurement claims no order
            kept = {name: column[order] for name, column in kept.items()}
        sample.columns[device] |= kept
    sample.scaled |= known.scaled & {LOCAL_L2, Scalar.LOCAL_PROBE}


def _larger_known(one: Tensor, other: Tensor) -> Tensor:
    """Return the larger local norms; unknown where one is, unless the other is NaN or Inf."""
    larger = torch.maximum(one, other)
    smaller = torch.minimum(one, other)
    return torch.where((smaller < 0.0) & larger.isfinite(), smaller, larger)


def _added(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Add up 0-d tensors by device: a NaN in any is one in the sum."""
    sums: dict[torch.device, Tensor] = {}
    for tensor in tensors:
        sums[tensor.device] = sums[tensor.device] + tensor if tensor.device in sums else tensor
    return list(sums.values())
