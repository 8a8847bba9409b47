"""The layers that curves are of: names in their places, which never change, sizes and groups."""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.frames.layers import Layers
from gradwatch_server.curves.items import ItemKind

MAX_COMPARED: Final = 4_096
"""Names that a wrong one is compared with: each takes some 10 µs."""


@dataclass(frozen=True)
class KnownLayers:
    """The layers of an attempt, as they stood.

    Args:
        groups: Name of a group to (layers,) whether each layer is in it.
        dtypes: Gradient dtype of each, as torch spells it; none if that was not recorded.
        shards: In how many shards each is held, 1 of a whole one; none if not recorded.
        items: What else there are curves of: kind to names in their places.
    """

    names: tuple[str, ...] = ()
    numel: tuple[int, ...] = ()
    groups: Mapping[str, BoolArray] = field(default_factory=dict)
    is_ordered: bool = False
    dtypes: tuple[str, ...] = ()
    shards: tuple[int, ...] = ()
    items: Mapping[ItemKind, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, layers: Layers, items: Mapping[ItemKind, tuple[str, ...]], *, is_ordered: bool
    ) -> KnownLayers:
        """Return a copy that others may read."""
        return cls(
            tuple(layers.names),
            tuple(layers.numel),
            dict(layers.groups()),
            is_ordered,
            tuple(layers.dtypes),
            tuple(layers.shards),
            items,
        )

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def digest(self) -> str:
        """Another one for other names: 16 hexadecimal digits."""
        made = hashlib.blake2s("\0".join(self.names).encode("utf-8", "replace"), digest_size=8)
        return made.hexdigest()

    @cached_property
    def state(self) -> str:
        """Another one for anything else that is said of them: 8 hexadecimal digits."""
        groups = [(name, members.tobytes()) for name, members in self.groups.items()]
        told = (self.numel, groups, self.is_ordered, self.dtypes, self.shards)
        return hashlib.blake2s(repr(told).encode("utf-8", "replace"), digest_size=4).hexdigest()

    @cached_property
    def places(self) -> Mapping[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def sizes(self) -> FloatArray:
        """(layers,) elements."""
        return np.array(self.numel, dtype=np.float64)

    def near(self, name: str, limit: int = 3) -> list[str]:
        """Return the names that are most like one that is not there."""
        return nearest(name, self.names, limit)

    def matching(self, pattern: str) -> IndexArray:
        """Return the places of the names that fit a pattern, upper and lower case told apart."""
        places = [at for at, name in enumerate(self.names) if fnmatch.fnmatchcase(name, pattern)]
        return np.array(places, dtype=np.int64)

    def group_of(self, place: int) -> str | None:
        """Return the first named group that a layer is in, None without any."""
        for name, members in self.groups.items():
            if place < len(members) and members[place]:
                return name
        return None


def nearest(name: str, names: Sequence[str], limit: int = 3) -> list[str]:
    """Return the names that are most like one that is not among them."""
    compared = names[:MAX_COMPARED]
    inside = [one for one in compared if name and name in one][:limit]
    return inside or difflib.get_close_matches(name[:200], compared, limit, 0.4)


def module_of(name: str) -> str:
    """Return the name of the module that has a parameter, empty for one of the model itself."""
    return name.rpartition(".")[0]
