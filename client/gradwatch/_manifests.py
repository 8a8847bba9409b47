"""Manifests: which layers the columns of a record stand for, declared once per set of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gradwatch._layers import Layer
from gradwatch_wire import Column, Manifest

COLUMNS: Final = ("l2", "nans", "infs")

MAX_MANIFESTS: Final = 64
"""Sets of layers that are remembered. A model that skips layers at random has no end of them."""


class Manifests:
    """Hands out one manifest per set of layers that has gradients together.

    Of more than `MAX_MANIFESTS` sets the oldest are forgotten, and declared anew when they return.
    """

    def __init__(self, layers: Sequence[Layer], groups: Mapping[str, frozenset[int]]) -> None:
        self._layers = layers
        self._groups = groups
        self._known: dict[tuple[int, ...], int] = {}
        self._num_made = 0

    def find(self, indices: tuple[int, ...], seen: frozenset[int]) -> tuple[int, Manifest | None]:
        """Return the id of a set of layers, and its manifest if it is new and has to be sent.

        Args:
            indices: The layers, in order.
            seen: Layers whose place in the forward pass is known.
        """
        known = self._known.get(indices)
        if known is not None:
            return known, None
        if len(self._known) == MAX_MANIFESTS:
            del self._known[next(iter(self._known))]
        self._num_made += 1
        self._known[indices] = self._num_made
        return self._num_made, self._make(self._num_made, indices, seen)

    def _make(self, number: int, indices: tuple[int, ...], seen: frozenset[int]) -> Manifest:
        layers = [self._layers[index] for index in indices]
        places = {index: place for place, index in enumerate(indices)}
        return Manifest(
            manifest_id=number,
            names=tuple(layer.name for layer in layers),
            numel=Column.pack("<u8", [layer.parameter.numel() for layer in layers]),
            dtypes=tuple(str(layer.parameter.dtype).removeprefix("torch.") for layer in layers),
            columns=COLUMNS,
            groups={
                name: tuple(sorted(places[index] for index in members if index in places))
                for name, members in self._groups.items()
            },
            order="forward" if seen.issuperset(indices) else "registration",
        )
