"""Layouts: which layers the columns of a record are about, and which shard of each."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from gradwatch_server.core.arrays import BoolArray, IndexArray
from gradwatch_server.core.frames.sizes import array_bytes, names_bytes
from gradwatch_server.core.packing import Packed, pack, unpack


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """Which shard of each layer a rank holds, (own layers,) each.

    Args:
        partition: How the layer is divided: shards of the same partition belong together. 0 for a
            whole layer.
        number: Which of them, from 0.
        count: How many there are, 1 for a whole layer.
    """

    partition: IndexArray
    number: IndexArray
    count: IndexArray


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Layout:
    """What the columns of a record stand for. Ranks of one layout share one object.

    Args:
        index: (own layers,) position of each in the attempt's layers.
        shards: What the rank holds of them, None if every layer is whole.
        modules: Names of the modules that a record has magnitudes of.

    Attributes:
        in_order: Whether its layers are the first ones of the attempt, in their order.
    """

    index: IndexArray
    shards: Shards | None = None
    modules: tuple[str, ...] = ()
    in_order: bool = field(init=False)

    def __post_init__(self) -> None:
        in_order = np.array_equal(self.index, np.arange(len(self.index)))
        object.__setattr__(self, "in_order", in_order)

    @property
    def is_sharded(self) -> BoolArray:
        """(own layers,) whether the rank holds one of several shards."""
        if self.shards is None:
            return np.zeros(len(self.index), dtype=np.bool_)
        several: BoolArray = self.shards.count > 1
        return several

    @property
    def num_bytes(self) -> int:
        """What it takes in memory."""
        held = self.shards
        shards = () if held is None else (held.partition, held.number, held.count)
        return sum(map(array_bytes, (self.index, *shards))) + names_bytes(self.modules)

    def state_dict(self) -> dict[str, Any]:
        """Return plain data."""
        shards = self.shards
        return {
            "index": pack(self.index),
            "pieces": None
            if shards is None
            else [pack(getattr(shards, own.name)) for own in fields(shards)],
            "modules": self.modules,
        }


def unpack_layout(state: dict[str, Any]) -> Layout:
    """Return what `Layout.state_dict` described; `Layers.share` makes it the one of its kind."""
    shards: list[Packed] | None = state["pieces"]
    return Layout(
        unpack(state["index"]),
        None if shards is None else Shards(*map(unpack, shards)),
        tuple(state["modules"]),
    )


class LayoutTable:
    """Numbers the layouts of an attempt while it is saved.

    Ranks that share a layout must share it again when they are restored.
    """

    def __init__(self) -> None:
        self.states: list[dict[str, Any]] = []
        self._numbers: dict[int, int] = {}

    def number(self, layout: Layout) -> int:
        """Return the place of a layout in `states`."""
        found = self._numbers.get(id(layout))
        if found is None:
            found = self._numbers[id(layout)] = len(self.states)
            self.states.append(layout.state_dict())
        return found
