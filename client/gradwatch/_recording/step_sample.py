"""One collection: statistics and scalars of a step, most of them still on the devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwatch._recording.magnitudes import OutputMagnitudes
from gradwatch._statistics.devices import places_by_device
from gradwatch._statistics.statistics import statistics
from gradwatch_wire.columns import COUNT_COLUMNS, ZEROS
from gradwatch_wire.names import Label
from gradwatch_wire.records import LabelValue


@dataclass(slots=True, kw_only=True)
class StepSample:
    """What was collected at one moment, until it is sent or taken into an accumulator.

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
        columns: Device to column to (own layers,) float64, the loss scale divided out.
        divisor: The loss scale that was divided out, 0-d, None if there was none to divide out.
        is_ordered: Whether `layers` follow the forward pass.
        outputs: What the outputs of modules came to, None if none was looked at.
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
    versions: list[tuple[int, int]] = field(default_factory=list)
    columns: dict[torch.device, dict[str, Tensor]] = field(default_factory=dict)
    divisor: Tensor | None = None
    is_ordered: bool = False
    outputs: OutputMagnitudes | None = None

    def measure(
        self,
        gradients: Sequence[Tensor],
        columns_on: Callable[[torch.device], Sequence[str]],
        divisor: Tensor | None,
    ) -> str:
        """Enqueue the statistics of all gradients, device by device.

        Args:
            gradients: The dense local gradient of each layer, in the order of `layers`.
            columns_on: Returns which statistics to make on a device; see `statistics`.
            divisor: Loss scale that the gradients still carry, 0-d, or None.

        Returns:
            Why a better path than the one named in the labels did not run, empty if none did.
        """
        declined = ""
        self.places = places_by_device(gradients)
        for device, places in self.places.items():
            found = statistics([gradients[place] for place in places], columns_on(device))
            self.labels[Label.PATH] = found.path
            declined = found.declined or declined
            self.columns[device] = dict(found.values)
        if divisor is not None:
            self.divide(divisor)
        return declined

    def add_zeros(self, layer: int, count: int) -> None:
        """Count elements of a layer's gradient that are zero and were not among the measured."""
        place = self.layers.index(layer)
        for device, places in self.places.items():
            if place in places and ZEROS in self.columns[device]:
                self.columns[device][ZEROS][places.index(place)] += count

    def divide(self, divisor: Tensor) -> None:
        """Divide the loss scale out of all that was measured."""
        self.divisor = divisor if self.divisor is None else self.divisor * divisor
        for device, columns in self.columns.items():
            own = divisor.to(device)
            for name in columns.keys() - COUNT_COLUMNS:
                columns[name] = columns[name] / own

    def add_scalar(self, name: str, value: Tensor | float | None) -> None:
        """Add a number of the whole step, from the host or from a device; None adds nothing."""
        if isinstance(value, Tensor):
            self.device_scalars[name] = [value]
        elif value is not None:
            self.scalars[name] = value
