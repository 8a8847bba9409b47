"""Layouts: which layers the columns of a record are about, and which shard of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from gradwatch_server.core.arrays import BoolArray, IndexArray
from gradwatch_server.core.frames.sizes import ARRAY_BYTES, MAX_ITEM_BYTES, array_bytes, names_bytes
from gradwatch_server.core.state_codec import Shared


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """Shard of each layer that a rank holds, (own layers,) each.

    Args:
        partition: How the layer is divided: shards of the same partition belong together. 0 for a
            whole layer.
        number: Which of them, from 0.
        count: How many there are, 1 for a whole layer.
        expert: Whether a rank may lack its shard: no token of its batch went there.
    """

    partition: IndexArray
    number: IndexArray
    count: IndexArray
    expert: BoolArray


@dataclass(frozen=True, slots=True, eq=False)
class LayoutState:
    """Facts of a layout: the arguments of its constructor."""

    index: IndexArray
    shards: Shards | None
    modules: tuple[str, ...]
    stage: int | None = None


class Layout(Shared):
    """Layers that the columns of a record are about. Ranks of one layout share one object.

    Args:
        index: (own layers,) position of each in the attempt's layers.
        shards: Shards that the rank holds of them, None if every layer is whole.
        stage: Pipeline stage of the ranks, None without a pipeline.

    Attributes:
        in_order: Whether its layers are the first ones of the attempt, in their order.
        column_bytes: Bytes that a column of them takes in memory.
    """

    STATE = LayoutState
    __slots__ = (
        "__weakref__",
        "column_bytes",
        "in_order",
        "index",
        "modules",
        "num_layers",
        "shards",
        "stage",
    )

    def __init__(
        self,
        index: IndexArray,
        shards: Shards | None = None,
        modules: tuple[str, ...] = (),
        stage: int | None = None,
    ) -> None:
        self.index, self.shards, self.modules, self.stage = index, shards, modules, stage
        self.in_order = np.array_equal(index, np.arange(len(index)))
        self.num_layers = len(index)
        self.column_bytes = ARRAY_BYTES + self.num_layers * MAX_ITEM_BYTES

    @property
    def is_sharded(self) -> BoolArray:
        """(own layers,) whether the rank holds one of several shards."""
        if self.shards is None:
            return np.zeros(len(self.index), dtype=np.bool_)
        several: BoolArray = self.shards.count > 1
        return several

    @property
    def num_bytes(self) -> int:
        held = self.shards
        shards = () if held is None else (held.partition, held.number, held.count, held.expert)
        return sum(map(array_bytes, (self.index, *shards))) + names_bytes(self.modules)

    def to_state(self) -> LayoutState:
        return LayoutState(self.index, self.shards, self.modules, self.stage)

    @classmethod
    def from_state(cls, state: LayoutState) -> Self:
        return cls(state.index, state.shards, state.modules, state.stage)
