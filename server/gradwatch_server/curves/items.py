"""Items of curves beside layers: groups, pairs of these, modules, and blocks.

Their names get places as they come, which never change, as those of layers do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray

MAX_ITEMS: Final = 4_096
"""Names of a kind that an attempt has curves of, the first ones; a record has as many blocks."""


class ItemKind(StrEnum):
    """Kind of an item."""

    GROUP = "group"
    PAIR = "pair"
    MODULE = "module"
    BLOCK = "block"


ITEM_COLUMNS: Final[Mapping[ItemKind, tuple[str, ...]]] = {
    ItemKind.GROUP: ("l2", "rms"),
    ItemKind.PAIR: ("ratio",),
    ItemKind.MODULE: ("activation",),
    ItemKind.BLOCK: ("gain", "output_norm"),
}
"""Numbers of each: L2 norm and root mean square of a group; the ratio of two; the largest magnitude
in a module's outputs; how much the gradient grew from the next block to this one, and its norm at
this one's output."""


def table_of(kind: ItemKind, column: str) -> str:
    return f"{kind}.{column}"


USUAL_TABLE: Final = "usual"
"""The table of the L2 norm that was usual of each layer, whose items are the layers."""

SPREAD_TABLE: Final = "spread"
"""The table of the factor by which a norm usually leaves that; its items are the layers, too."""

ROUNDED_BITS: Final[Mapping[str, int]] = {USUAL_TABLE: 8, SPREAD_TABLE: 4}
"""Bits of the mantissa that are kept of a usual norm, and of its spread."""

ITEM_TABLES: Final = frozenset(
    {
        USUAL_TABLE,
        SPREAD_TABLE,
        *(table_of(kind, name) for kind, columns in ITEM_COLUMNS.items() for name in columns),
    }
)

GAIN_TABLES: Final = frozenset(
    table_of(ItemKind.BLOCK, column) for column in ITEM_COLUMNS[ItemKind.BLOCK]
)
"""Columns whose rows are not of frames: gains have records and steps of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class ItemNumbers:
    """Numbers of the items of one table at one step.

    Args:
        places: (items,) their places; None if they are 0, 1, 2, and so on.
        values: (items,) the numbers.
        known: (items,) whether there is one.
    """

    places: IndexArray | None
    values: FloatArray
    known: BoolArray

    @classmethod
    def of(cls, places: IndexArray, values: Sequence[float | None]) -> Self:
        """Return those numbers that are not None, of items that have a place."""
        has_place = places >= 0
        known = np.array([value is not None for value in values], dtype=np.bool_)
        numbers = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
        return cls(places[has_place], numbers[has_place], known[has_place])

    @property
    def width(self) -> int:
        if self.places is None:
            return len(self.values)
        return int(self.places.max(initial=-1)) + 1


def rounded(values: FloatArray, num_bits: int) -> FloatArray:
    """Round to some bits of a float32: lower ones change in each row, and would fill the disk."""
    half = np.uint32(1 << (22 - num_bits))
    with np.errstate(over="ignore", under="ignore"):
        bits = values.astype(np.float32).view(np.uint32) + half
    return (bits & ~np.uint32(2 * half - 1)).view(np.float32).astype(np.float64)


class ItemNames:
    """The names of an attempt's items."""

    def __init__(self, known: Mapping[ItemKind, tuple[str, ...]] | None = None) -> None:
        self._names = {kind: list((known or {}).get(kind, ())) for kind in ItemKind}
        self._places = {
            kind: {name: at for at, name in enumerate(names)} for kind, names in self._names.items()
        }
        self._last: dict[ItemKind, tuple[tuple[str, ...], IndexArray]] = {}
        self._snapshot: Mapping[ItemKind, tuple[str, ...]] | None = None

    def places(self, kind: ItemKind, names: tuple[str, ...]) -> IndexArray:
        """Return (names,) their places; new ones get one, -1 where there are too many."""
        last = self._last.get(kind)
        if last is not None and last[0] == names:  # nearly always
            return last[1]
        places = np.array([self._place(kind, name) for name in names], dtype=np.int64)
        self._last[kind] = names, places
        return places

    def _place(self, kind: ItemKind, name: str) -> int:
        places, names = self._places[kind], self._names[kind]
        if name not in places:
            if len(names) >= MAX_ITEMS:
                return -1
            places[name] = len(names)
            names.append(name)
            self._snapshot = None
        return places[name]

    def all(self) -> Mapping[ItemKind, tuple[str, ...]]:
        """Return all names in their places; the same object as long as none joined."""
        if self._snapshot is None:
            self._snapshot = {kind: tuple(names) for kind, names in self._names.items() if names}
        return self._snapshot
