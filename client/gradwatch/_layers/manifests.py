"""Manifests: which layers the columns of a record stand for, declared once per set of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gradwatch._layers.layers import Layer
from gradwatch._layers.pieces import piece_slices
from gradwatch._layers.shards import find_shard
from gradwatch_wire import Column, Manifest
from gradwatch_wire.columns import STATISTIC_COLUMNS
from gradwatch_wire.limits import MAX_MANIFESTS
from gradwatch_wire.names import LayerOrder


class Manifests:
    """Hands out one manifest per set of layers that has gradients together, or one per piece of it.

    Of more than `MAX_MANIFESTS` manifests the oldest are forgotten, and declared anew when their
    layers return.

    Args:
        layers: Watched parameters.
        groups: Named group to indices into `layers`.
        num_pieces: Manifests per set of layers; see `pieces`.
        modules: Names of the modules whose outputs are measured.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        groups: Mapping[str, frozenset[int]],
        num_pieces: int = 1,
        modules: Sequence[str] = (),
    ) -> None:
        self._layers = layers
        self._groups = groups
        self._num_pieces = num_pieces
        self._modules = tuple(modules)
        self._known: dict[tuple[tuple[int, ...], bool, tuple[torch.dtype, ...]], int] = {}
        self._num_made = 0

    def find(
        self, indices: tuple[int, ...], gradients: Sequence[Tensor], *, ordered: bool
    ) -> tuple[int, list[Manifest]]:
        """Return the id of a set of layers, and its manifests if they have to be sent: it is new.

        The id is that of the manifest of its first piece; those of the others follow it.

        Args:
            indices: The layers, in order.
            gradients: Their gradients; how they are sharded is taken to stay as it is, but
                `model.double()` changes their dtypes.
            ordered: Whether they are in forward order; otherwise in that of registration.
        """
        key = (indices, ordered, tuple([gradient.dtype for gradient in gradients]))
        known = self._known.get(key)
        if known is not None:
            return known, []
        if (len(self._known) + 1) * self._num_pieces > MAX_MANIFESTS and self._known:
            del self._known[next(iter(self._known))]
        number = self._known[key] = self._num_made + 1
        made = [
            self._make(indices[piece], gradients[piece], ordered=ordered)
            for piece in piece_slices(len(indices), self._num_pieces)
        ]
        return number, made

    def forget(self) -> None:
        """Declare all sets anew: layers have become others."""
        self._known.clear()

    def _make(
        self, indices: tuple[int, ...], gradients: Sequence[Tensor], *, ordered: bool
    ) -> Manifest:
        self._num_made += 1
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
            modules=self._modules,
        )
