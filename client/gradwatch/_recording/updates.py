"""The step that an optimizer takes: how far each layer's weights move, every so many steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gradwatch._faults import Faults
from gradwatch._layers.layers import Layer
from gradwatch._layers.parallel import Parallel
from gradwatch._recording.step_sample import StepSample
from gradwatch._statistics.updates import WeightSample, size_of_update, take_sample
from gradwatch_wire.columns import UNCHANGED


class WeightUpdates:
    """Adds the size of its update to the first collected step of every so many.

    Args:
        updates_every: Steps of which the first one that is collected is looked at; 0 for none.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        updates_every: int,
        faults: Faults,
        parallel: Parallel | None = None,
    ) -> None:
        self._parallel = parallel or Parallel()
        self._layers = layers
        self._updates_every = updates_every
        self._faults = faults
        self._newest: dict[int, int] = {}  # by optimizer: which so many steps were looked at
        # By optimizer and device: the layers, and what their weights were.
        self._before: dict[int, dict[torch.device, tuple[list[int], WeightSample]]] = {}

    def begin_step(self, optimizer: int, step: int, layers: Iterable[int]) -> None:
        """Read the weights of layers before an optimizer moves them, if it is time to."""
        if not self._updates_every:
            return
        # Ranks have parts of a layer: nothing else than the step's number may decide.
        number = step // self._updates_every
        if self._newest.get(optimizer) == number:
            return
        self._newest[optimizer] = number
        own: dict[torch.device, list[int]] = {}
        with self._faults.noting("updates"):
            for layer in layers:
                own.setdefault(self._layers[layer].parameter.device, []).append(layer)
            self._before[optimizer] = {
                device: (each, take_sample([self._layers[i].parameter for i in each], device))
                for device, each in own.items()
            }

    def end_step(self, optimizer: int, sample: StepSample) -> None:
        """Read them once more, and add the columns of the update to the step's sample."""
        for device, (layers, before) in self._before.pop(optimizer, {}).items():
            with self._faults.noting("updates"):
                own = [sample.layers[place] for place in sample.places.get(device, ())]
                columns = size_of_update(before) if own else {}
                if layers != own:
                    places = [layers.index(layer) for layer in own]
                    columns = {name: column[places] for name, column in columns.items()}
                sample.columns[device] |= self._of_wholes(columns, own)

    def _of_wholes(self, columns: dict[str, Tensor], layers: Sequence[int]) -> dict[str, Tensor]:
        """Return the columns as parts of those of whole layers, as DTensors have them already."""
        if not self._parallel.meshes:
            return columns
        counts = [self._parallel.count_of(self._layers[i].parameter) for i in layers]
        if max(counts, default=1) == 1:
            return columns
        shares = {True: [1.0 / count for count in counts], False: [count**-0.5 for count in counts]}
        return {
            name: column * column.new_tensor(shares[name == UNCHANGED])
            for name, column in columns.items()
        }

    def forget(self, optimizer: int) -> None:
        """Drop what was read: no step was taken."""
        self._before.pop(optimizer, None)
