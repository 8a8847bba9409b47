"""One collection: the numbers of one step, from the gradients to a STATS record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwatch._statistics.readback import Readback, pack
from gradwatch._statistics.statistics import statistics
from gradwatch_wire import Column, Manifest, Record, Stats
from gradwatch_wire.records import LabelValue

COUNTS = frozenset({"zeros", "nans", "infs"})
"""Columns of whole numbers."""


@dataclass(slots=True)
class Sample:
    """Statistics of one moment, on the devices.

    Args:
        values: Device to column to (own layers,) float64, gradients unscaled.
        places: Device to the places of its layers in the manifest.
        path: Path that worked them out.
        declined: Why a better path did not, empty if the best one did.
    """

    values: dict[torch.device, dict[str, Tensor]]
    places: dict[torch.device, list[int]]
    path: str
    declined: str


@dataclass(slots=True)
class Measured:
    """Numbers of one device on their way: what the packed tensor holds, one after the other."""

    places: list[int]
    columns: list[str]  # each with one number per place
    scalars: list[str]
    readback: Readback


@dataclass(slots=True)
class Collection:
    """Everything needed to make the records of one step once the numbers have arrived."""

    step: int
    time_ns: int
    manifest_id: int
    num_layers: int
    measured: list[Measured]
    labels: dict[str, LabelValue]
    scalars: dict[str, float]
    manifests: list[Manifest] = field(default_factory=list)
    part: int = 0
    parts: int = 1

    def ready(self) -> bool:
        """Tell whether all numbers have arrived; never waits."""
        return all(measured.readback.ready() for measured in self.measured)

    def records(self) -> list[Record]:
        """Return the manifests that have to come first, and the STATS."""
        columns: dict[str, list[float]] = {}
        scalars = dict(self.scalars)
        for measured in self.measured:
            numbers = iter(measured.readback.read())
            for name in measured.columns:
                column = columns.setdefault(name, [math.nan] * self.num_layers)
                for place in measured.places:
                    column[place] = next(numbers)
            for name in measured.scalars:
                # The probe may have a sum on several devices; a NaN in any shows in their sum.
                scalars[name] = scalars.get(name, 0.0) + next(numbers)
        if not any(any(columns.get(name, ())) for name in ("nans", "infs")):
            columns.pop("nans", None)
            columns.pop("infs", None)
        stats = Stats(
            manifest_id=self.manifest_id,
            step=self.step,
            labels=self.labels,
            scalars=scalars,
            columns={name: _column(name, values) for name, values in columns.items()},
            part=self.part,
            parts=self.parts,
        )
        return [*self.manifests, stats]


def _column(name: str, values: Sequence[float]) -> Column:
    if name in COUNTS and all(map(math.isfinite, values)):
        return Column.pack("<u8", map(int, values))
    return Column.pack("<f8", values)


def sample(gradients: Sequence[Tensor], columns: Sequence[str], divisor: Tensor | None) -> Sample:
    """Enqueue the statistics of all gradients, device by device.

    Args:
        gradients: The dense local gradient of each layer of the manifest.
        columns: Which statistics; see `statistics`.
        divisor: Loss scale that the gradients still carry, 0-d or one per layer, or None.
    """
    places: dict[torch.device, list[int]] = {}
    for place, gradient in enumerate(gradients):
        places.setdefault(gradient.device, []).append(place)
    made = Sample({}, places, "", "")
    for device, mine in places.items():
        found = statistics([gradients[place] for place in mine], columns)
        made.path, made.declined = found.path, found.declined
        own = divisor if divisor is None or not divisor.dim() else divisor[mine]
        made.values[device] = {
            name: values if own is None or name in COUNTS else values / own.to(device)
            for name, values in found.values.items()
        }
    return made


def send_off(
    values: Mapping[torch.device, Mapping[str, Tensor]],
    places: Mapping[torch.device, list[int]],
    scalars: Mapping[str, Sequence[Tensor]],
) -> list[Measured]:
    """Start the copies to the host, one per device.

    Args:
        values: Device to column to (own layers,) float64.
        places: Device to the places of its layers in the manifest.
        scalars: Name to 0-d tensors to be read back along; those of one name are added up.
    """
    extra: dict[torch.device, dict[str, Tensor]] = {}
    for name, tensors in scalars.items():
        for tensor in tensors:
            own = extra.setdefault(tensor.device, {})
            own[name] = own[name] + tensor if name in own else tensor
    measured = []
    for device in {**values, **extra}:
        columns, own = values.get(device, {}), extra.get(device, {})
        packed = pack([*columns.values(), *own.values()])
        measured.append(
            Measured(places.get(device, []), list(columns), list(own), Readback(packed))
        )
    return measured
