"""Numbers of the named groups of an attempt at one step, and of pairs of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.frames.closed_frame import ClosedFrame
from gradwatch_server.core.frames.layers import Layers
from gradwatch_server.core.frames.merging import total_norm
from gradwatch_server.core.views.groups import Group, ratio
from gradwatch_server.curves.items import ItemKind, ItemNames, ItemNumbers, table_of

MAX_PAIRED: Final = 16
"""Groups of which each pair has a curve, the first ones: 120 pairs."""


@dataclass(frozen=True, slots=True, eq=False)
class _Members:
    """The layers of a group."""

    name: str
    index: IndexArray
    numel: FloatArray
    total: int

    def group(self, present: BoolArray, l2: FloatArray, *, is_whole: bool) -> Group:
        """Return the group over those of its layers that are there."""
        if is_whole and len(self.index):
            return Group(self.name, len(self.index), self.total, total_norm(l2[self.index]))
        there = present[self.index]
        index = self.index[there]
        norm = total_norm(l2[index]) if len(index) else None
        return Group(self.name, len(index), int(self.numel[there].sum()), norm)


class GroupNumbers:
    """Remembers from step to step which layers are in which group."""

    def __init__(self) -> None:
        self._masks: Mapping[str, BoolArray] | None = None
        self._members: list[_Members] = []

    def numbers(
        self, closed: ClosedFrame, l2: FloatArray, names: ItemNames
    ) -> Iterator[tuple[str, ItemNumbers]]:
        """Yield the tables of groups and of pairs, nothing without named groups."""
        self._follow(closed.layers)
        present = closed.frame.present
        is_whole = np.count_nonzero(present) == len(present) == len(closed.layers.names)
        groups = [members.group(present, l2, is_whole=is_whole) for members in self._members]
        if not groups:
            return
        places = names.places(ItemKind.GROUP, tuple(group.name for group in groups))
        norms = [group.l2 for group in groups]
        roots = [
            None if group.l2 is None else group.l2 / max(group.numel, 1) ** 0.5 for group in groups
        ]
        yield table_of(ItemKind.GROUP, "l2"), ItemNumbers.of(places, norms)
        yield table_of(ItemKind.GROUP, "rms"), ItemNumbers.of(places, roots)
        pairs = list(itertools.combinations(groups[:MAX_PAIRED], 2))
        if pairs:
            together = tuple(f"{late.name}/{early.name}" for early, late in pairs)
            ratios = [ratio(late, early) for early, late in pairs]
            of_pairs = ItemNumbers.of(names.places(ItemKind.PAIR, together), ratios)
            yield table_of(ItemKind.PAIR, "ratio"), of_pairs

    def _follow(self, layers: Layers) -> None:
        masks = layers.groups()
        if masks is self._masks:  # nearly always
            return
        numel = np.array(layers.numel, dtype=np.float64)
        self._masks, self._members = masks, []
        for name, mask in masks.items():
            index = np.flatnonzero(mask)
            total = sum(layers.numel[at] for at in index.tolist())
            self._members.append(_Members(name, index, numel[index], total))
