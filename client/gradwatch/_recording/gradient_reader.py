"""Layers that have a gradient, and what of it can be measured: an odd one costs only itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradwatch._faults import Faults
from gradwatch._layers.layers import Layer
from gradwatch._layers.shards import is_partial
from gradwatch._recording.config import WatchConfig
from gradwatch._statistics.gradients import (
    dense,
    gradient_of,
    is_distributed,
    is_plain,
    num_unstored,
)
from gradwatch._statistics.statistics import statistics


@dataclass(slots=True)
class ReadGradients:
    """Gradients at one moment, by layer, in the order of registration.

    Args:
        given: As the parameters have them.
        stored: What this process stores of each, dense.
        unstored: Of a sparse one how many elements are zero because they are not stored.
    """

    given: dict[int, Tensor] = field(default_factory=dict)
    stored: dict[int, Tensor] = field(default_factory=dict)
    unstored: dict[int, int] = field(default_factory=dict)

    def without(self, layers: Collection[int]) -> ReadGradients:
        return ReadGradients(
            {layer: given for layer, given in self.given.items() if layer not in layers},
            {layer: stored for layer, stored in self.stored.items() if layer not in layers},
            {layer: count for layer, count in self.unstored.items() if layer not in layers},
        )


class GradientReader:
    """Reads gradients as they are, and tells once of each layer whose gradient cannot be read."""

    def __init__(self, config: WatchConfig, faults: Faults) -> None:
        self._layers = config.layers
        self._faults = faults
        self._told: set[int] = set()
        self._unsound: dict[int, tuple[type, torch.dtype]] = {}  # which kind could not be measured

    def read(self, members: frozenset[int] | None) -> ReadGradients:
        """Return the gradients that can be measured, of some layers or of all."""
        # Nearly all are plain, and there may be thousands in each step.
        given = {
            index: gradient
            for index, layer in enumerate(self._layers)
            if (gradient := layer.parameter.grad) is not None
            and (members is None or index in members)
        }
        if len(given) < (len(self._layers) if members is None else len(members)):
            given = self._with_main(given, members)
        if not self._unsound and all(map(is_plain, given.values())):
            return ReadGradients(given, given)
        found = ReadGradients()
        odd: dict[int, str] = {}
        for index, gradient in given.items():
            layer = self._layers[index]
            if is_plain(gradient) and not self._unsound:
                found.given[index] = found.stored[index] = gradient
                continue
            try:
                if self._is_left_out(index, layer, gradient):
                    continue
                found.stored[index] = stored = dense(gradient)
                if stored.is_meta:
                    odd[index] = "a gradient on the meta device cannot be measured"
                    continue
                if stored is not gradient and (unstored := num_unstored(gradient, stored)):
                    found.unstored[index] = unstored
            except Exception as error:  # noqa: BLE001 - a kind of tensor that nobody foresaw
                odd[index] = str(error)
            else:
                found.given[index] = gradient
        self._tell(odd)
        return found if not odd else found.without(odd)

    def _with_main(
        self, given: dict[int, Tensor], members: frozenset[int] | None
    ) -> dict[int, Tensor]:
        """Return the gradients with those that Megatron keeps in `main_grad`, and not in `grad`."""
        main = {
            index: gradient
            for index in (range(len(self._layers)) if members is None else members)
            if index not in given
            and (gradient := gradient_of(self._layers[index].parameter)) is not None
        }
        return dict(sorted((given | main).items())) if main else given

    def sound(self, found: ReadGradients, columns: Sequence[str]) -> ReadGradients:
        """Return those that can be measured one by one: all of them together could not."""
        odd: dict[int, str] = {}
        for index, gradient in found.stored.items():
            try:
                statistics([gradient], columns)
            except torch.cuda.OutOfMemoryError:
                raise  # says nothing of the gradient
            except Exception as error:  # noqa: BLE001 - of torch, whatever it cannot do
                self._unsound[index] = _kind(found.given[index])
                kind = f"a {type(gradient).__name__} of {gradient.dtype}"
                odd[index] = f"{kind} cannot be measured ({error})"
        self._tell(odd)
        return found.without(odd)

    def _is_left_out(self, index: int, layer: Layer, gradient: Tensor) -> bool:
        """Tell whether a gradient is not measured, for a reason that was told."""
        if is_distributed(gradient) and is_partial(gradient):
            self._faults.note("partial", f"{layer.name} is left out: not reduced yet")
            return True
        return index in self._unsound and self._unsound[index] == _kind(gradient)

    def _tell(self, odd: Mapping[int, str]) -> None:
        new = [index for index in odd if index not in self._told]
        if not new:
            return
        self._told.update(new)
        names = ", ".join(self._layers[index].name for index in new[:3])
        more = f" (and {len(new) - 3} more)" if len(new) > 3 else ""
        why = f"layer {names}{more}: {odd[new[0]]}; the others are"
        self._faults.note("odd gradient", why)
        if self._faults.counts["odd gradient"] > 1:  # of other layers than those told before
            self._faults.tell_once(why, f"odd gradient: {why}")


def _kind(gradient: Tensor) -> tuple[type, torch.dtype]:
    return type(gradient), gradient.dtype
