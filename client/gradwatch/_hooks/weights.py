"""Digests of the weights, every so many steps, so that replicas of them can be compared exactly.

What corrupts a weight of one rank leaves the averaged gradients equal on all ranks. The weights
are looked at where the gradients are: after the backward pass and before the optimizer steps, so
they are those that the step has used.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gradwatch._faults import Faults
from gradwatch._layers.layers import Layer
from gradwatch._recording.observer import Observer
from gradwatch._recording.schedule import Schedule
from gradwatch._recording.step_sample import StepSample
from gradwatch._statistics.digest import digest
from gradwatch._statistics.gradients import dense


class WeightDigests(Observer):
    """Adds a digest of the weights to the first collected step of every so many."""

    def __init__(
        self, layers: Sequence[Layer], weights_every: int, schedule: Schedule, faults: Faults
    ) -> None:
        self._layers = layers
        self._weights_every = weights_every
        self._schedule = schedule
        self._faults = faults

    def contribute(self, sample: StepSample) -> None:
        """Add the digests of the sample's layers, if its step is one of them."""
        # All ranks have to do so at the same steps: nothing else than its number may decide.
        if not self._schedule.is_first_of(sample.step, self._weights_every):
            return
        try:
            for device, places in sample.places.items():
                own = [self._read(sample.layers[place], device) for place in places]
                sample.columns[device] |= digest(own)
        except Exception as error:  # noqa: BLE001 - nothing may be raised into training
            self._faults.note("weights", repr(error))

    def _read(self, layer: int, device: torch.device) -> Tensor:
        """Return what this process stores of a weight; nothing of one that cannot be read."""
        parameter = self._layers[layer].parameter
        try:
            stored = dense(parameter.detach())
        except TypeError as error:
            self._faults.tell_once("weights", f"{self._layers[layer].name}: {error}")
            return torch.zeros(0, device=device)
        return stored if stored.device == device else torch.zeros(0, device=device)
