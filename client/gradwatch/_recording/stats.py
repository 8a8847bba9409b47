"""From a sample to a STATS record: packed on the devices, taken apart again on the host."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwatch._layers.pieces import piece_slices
from gradwatch._recording.pending import PendingRecord
from gradwatch._recording.readback import Readback
from gradwatch._recording.step_sample import StepSample
from gradwatch_wire import Column, Manifest, Stats
from gradwatch_wire.columns import COUNT_COLUMNS, INFS, L2, L2_MAX, NANS


class PendingStats(PendingRecord):
    """A STATS record; what is on a device is copied to the host, in one transfer per device.

    Args:
        sample: What it is made of; its tensors may be changed afterwards.
        manifests: Manifests that have not been sent yet.
    """

    def __init__(self, sample: StepSample, manifests: Iterable[Manifest] = ()) -> None:
        # Not the sample itself: its tensors would stay on the device until the record is made.
        self._manifest_id = sample.manifest_id
        self._num_layers = len(sample.layers)
        self._labels = sample.labels
        self._scalars = sample.scalars
        self._part, self._parts = sample.part, sample.parts
        self._num_pieces = sample.num_pieces
        self._packed = _packed_by_device(sample)
        self._outputs = None if sample.outputs is None else sample.outputs.reader()
        super().__init__(sample.step, [each.readback for each in self._packed], manifests)

    def _make(self) -> list[Stats]:
        columns: dict[str, list[float]] = {}
        scalars = dict(self._scalars)
        activations = None
        for packed in self._packed:
            numbers = iter(packed.readback.read())
            for name in packed.columns:
                column = columns.setdefault(name, [math.nan] * self._num_layers)
                for place in packed.places:
                    column[place] = next(numbers)
            for name in packed.scalars:
                # The probe may have a sum on several devices; a NaN in any shows in their sum.
                scalars[name] = scalars.get(name, 0.0) + next(numbers)
            if self._outputs is not None:
                self._outputs.take(packed.device, numbers)
        if self._outputs is not None:
            norms = (*columns.get(L2, ()), *columns.get(L2_MAX, ()))
            magnitudes, found = self._outputs.result(is_good=all(map(math.isfinite, norms)))
            activations = Column.pack("<f8", magnitudes)
            scalars |= found
        if not any(any(columns.get(name, ())) for name in (NANS, INFS)):
            columns.pop(NANS, None)
            columns.pop(INFS, None)
        return [
            Stats(
                manifest_id=self._manifest_id + number,
                step=self.step,
                labels=self._labels,
                scalars=scalars,
                columns={name: _column(name, values[piece]) for name, values in columns.items()},
                part=self._part * self._num_pieces + number,
                parts=self._parts * self._num_pieces,
                activations=None if number else activations,
            )
            for number, piece in enumerate(piece_slices(self._num_layers, self._num_pieces))
        ]


@dataclass(slots=True)
class _Packed:
    """Numbers of one device on their way, and what they are, one after the other."""

    device: torch.device
    places: Sequence[int]
    columns: Sequence[str]  # each with one number per place
    scalars: Sequence[str]  # each with one number
    readback: Readback


def _packed_by_device(sample: StepSample) -> list[_Packed]:
    scalars: dict[torch.device, dict[str, Tensor]] = {}
    for name, tensors in sample.device_scalars.items():
        for tensor in tensors:
            own = scalars.setdefault(tensor.device, {})
            own[name] = own[name] + tensor if name in own else tensor
    packed = []
    outputs = sample.outputs
    for device in dict.fromkeys(
        (*sample.columns, *scalars, *(outputs.devices() if outputs else ()))
    ):
        columns, own = sample.columns.get(device, {}), scalars.get(device, {})
        readback = Readback(
            [*columns.values(), *own.values(), *(outputs.on(device) if outputs else ())]
        )
        places = sample.places.get(device, ())
        packed.append(_Packed(device, places, list(columns), list(own), readback))
    return packed


def _column(name: str, values: Sequence[float]) -> Column:
    if name in COUNT_COLUMNS and all(map(math.isfinite, values)):
        return Column.pack("<u8", map(int, values))
    return Column.pack("<f8", values)
