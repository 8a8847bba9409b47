"""Manifests: which layers the columns of a record stand for, declared once per set of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradwatch._layers.layers import Layer
from gradwatch._layers.shards import find_shard
from gradwatch_wire import Column, Manifest
from gradwatch_wire.columns import STATISTIC_COLUMNS
from gradwatch_wire.limits import MAX_MANIFESTS
from gradwatch_wire.names import LayerOrder


class Manifests:
    """Hands out one manifest per set of layers that has gradients together.

    Of more than `MAX_MANIFESTS` sets the oldest are forgotten, and declared anew when they return.
    """

    def __init__(self, layers: Sequence[Layer], groups: Mapping[str, frozenset[int]]) -> None:
        self._layers = layers
        self._groups = groups
        self._known: dict[tuple[tuple[int, ...], bool, tuple[torch.dtype, ...]], int] = {}
        self._num_made = 0

    def find(
        self, indices: tuple[int, ...], gradients: Sequence[Tensor], *, ordered: bool
    ) -> tuple[int, Manifest | None]:
        """Return the id of a set of layers, and its manifest if it is new and has to be sent.

        Args:
            indices: The layers, in order.
            gradients: Their gradients; how they are sharded is taken to stay as it is, but
                `model.double()` changes their dtypes.
            ordered: Whether they are in forward order; otherwise in that of registration.
        """
        key = (indices, ordered, tuple([gradient.dtype for gradient in gradients]))
        known = self._known.get(key)
        if known is not None:
            return known, None
        if len(self._known) == MAX_MANIFESTS:
            del self._known[next(iter(self._known))]
        self._num_made += 1
        self._known[key] = self._num_made
        return self._num_made, self._make(indices, gradients, ordered=ordered)

    def forget(self) -> None:
        """Declare all sets anew: layers have become others."""
        self._known.clear()

    def _make(
        self, indices: tuple[int, ...], gradients: Sequence[Tensor], *, ordered: bool
    ) -> Manifest:
        layers = [self._layers[index] for index in indices]
        places = {index: place for place, index in enumerate(indices)}
        shards = tuple(find_shard(gradient) for gradient in gradients)
        return Manifest(
            manifest_id=self._num_made,
            names=tuple(layer.name for layer in layers),
            numel=Column.pack("<u8", [layer.parameter.numel() for layer in layers]),
            dtypes=tuple(str(gradient.dtype).removeprefix("torch.") for gradient in gradients),
            shards=shards if any(shards) else (),
            columns=tuple(column.name for column in STATISTIC_COLUMNS),
            groups={
                name: tuple(sorted(places[index] for index in members if index in places))
                for name, members in self._groups.items()
            },
            order=LayerOrder.FORWARD if ordered else LayerOrder.REGISTRATION,
        )
