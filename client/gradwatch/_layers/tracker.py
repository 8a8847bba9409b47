"""Layers that change while training goes on: replaced, added, removed.

A head may be replaced, `load_state_dict(assign=True)` puts in other parameters, a progressive
network grows. Which parameter a layer is, is decided by its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from operator import getitem, is_
from typing import Any

import torch
from torch import nn

from gradwatch._faults import Faults
from gradwatch._layers.layers import Layer, find_layers
from gradwatch._layers.names import Patterns
from gradwatch._layers.wrappers import is_fully_sharded


class LayerTracker:
    """Keeps a list of layers as the model is now.

    Args:
        model: What was given to `attach`.
        layers: Those found at first. It is written to: a layer keeps its index, one that is gone
            gets an empty parameter without gradient, new ones come after them.
        faults: Is told of a model that can no longer be read.
    """

    def __init__(
        self,
        model: nn.Module | Mapping[str, nn.Module],
        include: Patterns,
        exclude: Patterns,
        layers: list[Layer],
        faults: Faults,
        *,
        is_stage: bool = False,
    ) -> None:
        self._find = partial(find_layers, model, include, exclude, is_stage=is_stage)
        self._layers = layers
        self._faults = faults
        # FSDP exchanges parameters during the passes itself, and refuses others.
        tops = [model] if isinstance(model, nn.Module) else list(model.values())
        self._tops = [] if any(map(is_fully_sharded, tops)) else tops
        self._note()

    def refresh(self) -> list[int]:
        """Bring the layers up to date; return the indices of those with another parameter."""
        if self._is_as_noted():
            return []
        try:
            found = {layer.name: layer for layer in self._find()}
        except (TypeError, ValueError) as error:
            self._faults.note("layers", f"the model was changed and is not read anew: {error}")
            return []
        self._note()
        return self._replace(found)

    def _replace(self, found: dict[str, Layer]) -> list[int]:
        changed = []
        for index, known in enumerate(self._layers):
            layer = found.pop(known.name, None)
            if layer is None:
                gone = nn.Parameter(torch.empty(0, device="cpu"), requires_grad=False)
                self._layers[index] = Layer(known.name, gone)
            elif layer.parameter is not known.parameter:
                self._layers[index] = layer
                changed.append(index)
        for layer in found.values():
            changed.append(len(self._layers))
            self._layers.append(layer)
        return changed

    def _note(self) -> None:
        """Note every place where a module or a parameter is kept."""
        modules = {id(part): part for top in self._tops for part in top.modules()}
        self._dicts: list[dict[str, Any]] = []
        for part in modules.values():
            self._dicts += [part._modules, part._parameters]
        self._owners = [places for places in self._dicts for _ in places]
        self._keys = [key for places in self._dicts for key in places]
        self._kept = [value for places in self._dicts for value in places.values()]

    def _is_as_noted(self) -> bool:
        """Tell whether all is where it was; without a loop in Python, for it runs in each step."""
        if sum(map(len, self._dicts)) != len(self._keys):
            return False
        try:
            return all(map(is_, map(getitem, self._owners, self._keys), self._kept))
        except KeyError:
            return False
