"""Manifests: which layers the columns of a record stand for, declared once per set of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from torch import Tensor

from gradwatch._layers.layers import Layer
from gradwatch._statistics.gradients import is_distributed
from gradwatch._statistics.statistics import COLUMNS
from gradwatch_wire import Column, Manifest
from gradwatch_wire.limits import MAX_NAME_BYTES
from gradwatch_wire.shards import Shard

MAX_MANIFESTS: Final = 64
"""Sets of layers that are remembered. A model that skips layers at random has no end of them."""


class Manifests:
    """Hands out one manifest per set of layers that has gradients together.

    Of more than `MAX_MANIFESTS` sets the oldest are forgotten, and declared anew when they return.
    """

    def __init__(self, layers: Sequence[Layer], groups: Mapping[str, frozenset[int]]) -> None:
        self._layers = layers
        self._groups = groups
        self._known: dict[tuple[tuple[int, ...], bool], int] = {}
        self._num_made = 0

    def find(
        self, indices: tuple[int, ...], gradients: Sequence[Tensor], *, ordered: bool
    ) -> tuple[int, Manifest | None]:
        """Return the id of a set of layers, and its manifest if it is new and has to be sent.

        Args:
            indices: The layers, in order.
            gradients: Their gradients; how they are sharded is taken to stay as it is.
            ordered: Whether they are in forward order; otherwise in that of registration.
        """
        known = self._known.get((indices, ordered))
        if known is not None:
            return known, None
        if len(self._known) == MAX_MANIFESTS:
            del self._known[next(iter(self._known))]
        self._num_made += 1
        self._known[indices, ordered] = self._num_made
        return self._num_made, self._make(indices, gradients, ordered=ordered)

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
            columns=(*COLUMNS, "l2_max", "l2_mean", "local_l2"),
            groups={
                name: tuple(sorted(places[index] for index in members if index in places))
                for name, members in self._groups.items()
            },
            order="forward" if ordered else "registration",
        )


def find_shard(gradient: Any) -> str:
    """Return which piece of a gradient this rank holds, as a manifest says it.

    Mesh dimensions over which the gradient is replicated do not count: replicas hold the same
    piece, which is how the aggregator knows them.
    """
    if not is_distributed(gradient):
        return ""
    mesh = gradient.device_mesh
    place, piece, pieces = mesh.get_coordinate(), 0, 1
    for dim, placement in enumerate(gradient.placements):
        if placement.is_shard() or not placement.is_replicate():
            piece = piece * mesh.size(dim) + place[dim]
            pieces *= mesh.size(dim)
    if pieces == 1:
        return ""
    placements = " ".join(str(placement) for placement in gradient.placements)
    return str(Shard(piece, pieces, placements.encode()[: MAX_NAME_BYTES // 2].decode()))
