"""One collection: statistics and scalars of a step, most of them still on the devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import torch
from torch import Tensor

from gradwatch._recording.magnitudes import OutputMagnitudes
from gradwatch._recording.packed_numbers import PackedNumbers, is_far
from gradwatch._statistics.devices import meet, places_by_device
from gradwatch._statistics.digest_columns import DIGEST_COLUMNS
from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import COUNT_COLUMNS, L2, LOCAL_L2, UPDATE_COLUMNS, ZEROS
from gradwatch_wire.names import Label, Scalar
from gradwatch_wire.records import LabelValue

UNSCALED_COLUMNS: Final = COUNT_COLUMNS.union(DIGEST_COLUMNS, UPDATE_COLUMNS)
"""Columns that a loss scale does not multiply."""


Versions: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""Identity and version of each gradient."""


@dataclass(slots=True, kw_only=True)
class StepSample:
    """Numbers collected at one moment, until they are sent or taken into an accumulator.

    Args:
        step: Optimizer step it belongs to, from 0.
        manifest_id: The manifest that names its layers; the first of several, one per piece.
        layers: Indices of those layers among the watched ones, in the manifest's order.
        part: Which of `parts` records of this step this is, from 0.
        parts: How many samples the step makes: several with several optimizers.
        num_pieces: Records that it is divided into.
        is_complete: Whether the step's gradients are complete; False after a micro-batch.
        labels: What the numbers are.
        scalars: Numbers of the whole step that the host knows.
        device_scalars: Name to 0-d tensors, each on its device; those of one name are added up.
        places: Device to the places of its layers in `layers`.
        versions: What shows, for each layer, whether its gradient was changed since.
        columns: Device to column to (own layers,) float64.
        scaled: Columns and device scalars that carry the loss scale, which is then among the
            device scalars. It is divided out on the host.
        is_ordered: Whether `layers` follow the forward pass.
        outputs: What the outputs of modules came to, None if none was looked at.
        packed: Device to memory that the kernel has written its columns into.
        found_inf: What tells whether the optimizer, whose `step` was called, has skipped the update
            itself: 0-d, not 0 if it has. None of an optimizer that does not.
    """

    step: int
    manifest_id: int = 0
    layers: tuple[int, ...]
    part: int = 0
    parts: int = 1
    num_pieces: int = 1
    is_complete: bool = True
    labels: dict[str, LabelValue] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)
    device_scalars: dict[str, list[Tensor]] = field(default_factory=dict)
    places: dict[torch.device, list[int]] = field(default_factory=dict)
    versions: Versions = ((), ())
    columns: dict[torch.device, dict[str, Tensor]] = field(default_factory=dict)
    scaled: set[str] = field(default_factory=set)
    is_ordered: bool = False
    outputs: OutputMagnitudes | None = None
    packed: dict[torch.device, PackedNumbers] = field(default_factory=dict)
    found_inf: list[Tensor] = field(default_factory=list)

    def measure(
        self, gradients: Sequence[Tensor], columns_on: Callable[[torch.device], Sequence[str]]
    ) -> str:
        """Enqueue the statistics of all gradients, device by device.

        Args:
            gradients: The dense local gradient of each layer, in the order of `layers`.
            columns_on: Returns which statistics to make on a device; see `statistics`.

        Returns:
            Why a better path than the one named in the labels did not run, empty if none did.
        """
        declined = ""
        self.places = places_by_device(gradients)
        for device, places in self.places.items():
            packed = PackedNumbers(len(places), device) if is_far(device) else None
            found = statistics(
                [gradients[place] for place in places],
                columns_on(device),
                None if packed is None else packed.rows,
            )
            if packed is not None and packed.holds(found.values):
                self.packed[device] = packed
            self.labels[Label.PATH] = found.path
            declined = found.declined or declined
            self.columns[device] = dict(found.values)
        return declined

    def complete(self, step: int, part: int, *, taken: bool) -> None:
        """Mark the sample as complete, with the final number of its step."""
        self.step, self.part, self.is_complete = step, part, True
        self.labels[Label.TAKEN] = taken
        for bad_step in self.device_scalars.get(Scalar.FIRST_NONFINITE_STEP, ()):
            bad_step.masked_fill_(~bad_step.isnan(), float(step))

    def is_bad(self, *, wait: bool) -> bool | None:
        """Tell whether a gradient is NaN or Inf; None where only an accelerator that runs knows."""
        is_known = True
        for device, columns in self.columns.items():
            if is_far(device) and not wait:
                is_known = False
            elif not columns[L2].isfinite().all().item():
                return True
        return False if is_known else None

    def add_zeros(self, layer: int, count: int) -> None:
        """Count elements of a layer's gradient that are zero and were not among the measured."""
        place = self.layers.index(layer)
        for device, places in self.places.items():
            if place in places and ZEROS in self.columns[device]:
                self.columns[device][ZEROS][places.index(place)] += count

    def mark_scaled(self) -> None:
        """Note that all that was measured carries the loss scale, a device scalar from now on."""
        for columns in self.columns.values():
            self.scaled |= columns.keys() - UNSCALED_COLUMNS
        if LOCAL_L2 in self.scaled:
            self.scaled.add(Scalar.LOCAL_PROBE)  # the largest of these

    def unscaled(self, name: str, values: Tensor) -> Tensor:
        """Return values of a column or device scalar without the loss scale: on an accelerator.

        That is where the values or the scale are, if either is on one.
        """
        if name not in self.scaled:
            return values
        (scale,) = self.device_scalars[Scalar.LOSS_SCALE]
        values, scale = meet(values, scale)
        return values / scale

    def copied(self, number: Tensor) -> Tensor:
        """Return a 0-d float64 copy of a number, where it will be sent from if there is room."""
        packed = self.packed.get(number.device)
        kept = None if packed is None else packed.keep(number)
        return number.detach().to(torch.float64, copy=True) if kept is None else kept

    def add_scalar(self, name: str, value: Tensor | float | None) -> None:
        """Add a number of the whole step, from the host or from a device; None adds nothing."""
        if isinstance(value, Tensor):
            self.device_scalars[name] = [value]
        elif value is not None:
            self.scalars[name] = value
