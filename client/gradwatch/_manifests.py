"""Manifests: which layers the columns of a record stand for, declared once per set of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from gradwatch._layers import Layer
from gradwatch_wire import Column, Manifest

COLUMNS: Final = ("l2", "nans", "infs")


class Manifests:
    """Hands out one manifest per set of layers that has gradients together."""

    def __init__(self, layers: Sequence[Layer], groups: Mapping[str, frozenset[int]]) -> None:
        self._layers = layers
        self._groups = groups
        self._known: dict[tuple[int, ...], int] = {}

    def find(self, indices: tuple[int, ...], *, order_seen: bool) -> tuple[int, Manifest | None]:
        """Return the id of a set of layers, and its manifest if it is new and has to be sent."""
        known = self._known.get(indices)
        if known is not None:
            return known, None
        number = self._known[indices] = len(self._known) + 1
        return number, self._make(number, indices, order_seen=order_seen)

    def _make(self, number: int, indices: tuple[int, ...], *, order_seen: bool) -> Manifest:
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
            order="forward" if order_seen else "registration",
        )
