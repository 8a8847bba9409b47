"""One collection: the numbers of one step, from the gradients to a STATS record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwatch._readback import Readback, pack
from gradwatch._statistics import count_nonfinite, l2_norms
from gradwatch_wire import Column, Manifest, Record, Stats
from gradwatch_wire.records import Label


@dataclass(slots=True)
class Measured:
    """Numbers of one device on their way: which layers and scalars the packed tensor holds."""

    places: list[int]  # place in the manifest of each leading number
    scalars: list[str]  # name of each number behind them
    readback: Readback


@dataclass(slots=True)
class Collection:
    """Everything needed to make the records of one step once the numbers have arrived."""

    step: int
    time_ns: int
    manifest_id: int
    manifest: Manifest | None
    num_layers: int
    measured: list[Measured]
    labels: dict[str, Label]
    scalars: dict[str, float]
    nonfinite: dict[int, tuple[int, int]] = field(default_factory=dict)
    part: int = 0
    parts: int = 1

    def ready(self) -> bool:
        """Tell whether all numbers have arrived; never waits."""
        return all(measured.readback.ready() for measured in self.measured)

    def records(self) -> list[Record]:
        """Return the manifest, if it is new, and the STATS."""
        l2 = [math.nan] * self.num_layers
        scalars = dict(self.scalars)
        for measured in self.measured:
            numbers = measured.readback.read()
            for place, number in zip(measured.places, numbers, strict=False):
                l2[place] = number
            for name, number in zip(measured.scalars, numbers[len(measured.places) :], strict=True):
                # The probe may have a sum on several devices; a NaN in any shows in their sum.
                scalars[name] = scalars.get(name, 0.0) + number
        stats = Stats(
            manifest_id=self.manifest_id,
            step=self.step,
            labels=self.labels,
            scalars=scalars,
            columns=self._columns(l2),
            part=self.part,
            parts=self.parts,
        )
        return [stats] if self.manifest is None else [self.manifest, stats]

    def _columns(self, l2: list[float]) -> dict[str, Column]:
        columns = {"l2": Column.pack("<f8", l2)}
        if self.nonfinite:
            counts = [self.nonfinite.get(place, (0, 0)) for place in range(self.num_layers)]
            columns["nans"] = Column.pack("<u8", [nans for nans, _ in counts])
            columns["infs"] = Column.pack("<u8", [infs for _, infs in counts])
        return columns


def measure(
    gradients: Sequence[Tensor], scalars: Mapping[str, Sequence[Tensor]], divisor: Tensor | None
) -> tuple[list[Measured], dict[int, tuple[int, int]], str]:
    """Enqueue the statistics of all gradients, device by device.

    Args:
        gradients: The gradient of each layer of the manifest.
        scalars: Name to 0-d tensors to be read back along; several are added up.
        divisor: Loss scale that the gradients still carry, 0-d, or None.

    Returns:
        What is on its way; NaN and Inf counts by place, for CPU layers that have any; the path.
    """
    places: dict[torch.device, list[int]] = {}
    dense = [_dense(gradient) for gradient in gradients]
    for place, gradient in enumerate(dense):
        places.setdefault(gradient.device, []).append(place)
    extra: dict[torch.device, dict[str, Tensor]] = {}
    for name, tensors in scalars.items():
        for tensor in tensors:
            own = extra.setdefault(tensor.device, {})
            own[name] = own[name] + tensor if name in own else tensor
    measured: list[Measured] = []
    nonfinite: dict[int, tuple[int, int]] = {}
    path = ""
    for device in {**places, **extra}:
        mine = places.get(device, [])
        values: list[Tensor] = []
        if mine:
            norms, path = l2_norms([dense[place] for place in mine])
            if device.type == "cpu":
                nonfinite |= _count(norms, mine, dense)
            values.append(norms if divisor is None else norms / divisor.to(device))
        own = extra.get(device, {})
        packed = pack([*values, *own.values()])
        measured.append(Measured(mine, list(own), Readback(packed)))
    return measured, nonfinite, path


def _count(
    norms: Tensor, places: Sequence[int], gradients: Sequence[Tensor]
) -> dict[int, tuple[int, int]]:
    """Count NaN and Inf where a norm says that there are some."""
    bad = (~norms.isfinite()).nonzero().flatten().tolist()
    return {places[i]: count_nonfinite(gradients[places[i]]) for i in bad}


def _dense(gradient: Tensor) -> Tensor:
    """Return the stored numbers: those a sparse gradient leaves out are zero."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient
