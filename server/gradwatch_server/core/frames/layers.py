"""The layers of an attempt: each name has a place, which no other layer ever takes."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2s
from sys import intern
from typing import Final
from weakref import WeakValueDictionary

import numpy as np

from gradwatch_server.budgets import UNLIMITED
from gradwatch_server.core.arrays import BoolArray, IndexArray, numbers
from gradwatch_server.core.frames.distribution import Distribution, find_stage
from gradwatch_server.core.frames.layout import Layout, Shards
from gradwatch_server.core.frames.sizes import names_bytes
from gradwatch_wire import Manifest
from gradwatch_wire.limits import MAX_GROUPS, MAX_LAYERS
from gradwatch_wire.names import Dimension
from gradwatch_wire.shards import UNKNOWN_PLACEMENT, Shard, parse_shard

LAYER_BYTES: Final = 5_000
"""Memory of the baselines of a layer, its last norms and its counts, measured with tracemalloc."""

MEMBER_BYTES: Final = 64
"""Bytes of a layer as a member of a group."""


UNKNOWN_PARTITION: Final = -1
"""Partition of layers of which a rank does not know how they lie on the ranks."""

MAX_NUMEL: Final = (1 << 63) - 1
"""Largest number of elements of a layer: more that a manifest claims is cut."""


@dataclass
class Layers:
    """Names, sizes and groups in the order in which manifests brought them.

    Args:
        dtypes: Gradient dtype of each, as torch spells it; empty where that is not known any more.
        shards: In how many shards each is held, 1 of a whole one; the most that a rank said.
        beta2: Decay of the second moment in the optimizer of each, NaN where it has none.
        optimizer: Class of the optimizer, empty where it is not known.
        distribution: Layers that several pipeline stages hold, and those that are not known.

    Attributes:
        num_bytes: Memory of names and groups, and of what is known of each layer.
    """

    names: list[str] = field(default_factory=list)
    numel: list[int] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    shards: list[int] = field(default_factory=list)
    beta2: list[float] = field(default_factory=list)
    optimizer: str = ""
    distribution: Distribution = field(default_factory=Distribution)
    _groups: dict[str, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._places = {name: place for place, name in enumerate(self.names)}
        self._masks: Mapping[str, BoolArray] | None = None
        self._layouts: WeakValueDictionary[bytes, Layout] = WeakValueDictionary()
        num_members = sum(map(len, self._groups.values()))
        self.num_bytes = layers_bytes(self.names) + MEMBER_BYTES * num_members

    def declare(self, manifest: Manifest, limit: int = UNLIMITED, rank: int = 0) -> Layout | None:
        """Give each layer of the manifest a place; None if they are too many.

        Ranks of one layout get one object, by which their records are known to be alike.

        Args:
            limit: Bytes that names and groups may take; groups beyond it are left out.
        """
        new = [name for name in manifest.names if name not in self._places]
        num_bytes = self.num_bytes + layers_bytes(new)
        if len(self.names) + len(new) > MAX_LAYERS or (new and num_bytes > limit):
            return None
        self.num_bytes = num_bytes
        self.optimizer = self.optimizer or manifest.optimizer
        decays = [math.nan] * len(manifest.names)
        if manifest.beta2 is not None:
            decays = numbers(manifest.beta2).tolist()
        told = zip(manifest.names, numbers(manifest.numel), manifest.dtypes, decays, strict=True)
        for name, numel, dtype, beta2 in told:
            if name not in self._places:
                self._places[name] = len(self.names)
                self.names.append(name)
                self.numel.append(min(int(numel), MAX_NUMEL))
                self.dtypes.append(intern(dtype))
                self.shards.append(1)
                self.beta2.append(beta2)
        index = np.array([self._places[name] for name in manifest.names], dtype=np.int64)
        self._add_groups(manifest, index.tolist(), limit)
        shards = _shards(manifest.shards)
        stage = find_stage(manifest, rank)
        if manifest.marks or stage is not None:
            self.distribution.add(index.tolist(), manifest.marks, stage)
        if shards is not None:
            for place, count in zip(index.tolist(), shards.count.tolist(), strict=True):
                self.shards[place] = max(self.shards[place], count)
            is_unknown = shards.partition == UNKNOWN_PARTITION
            self.distribution.unknown.update(index[is_unknown].tolist())
        return self.share(Layout(index, shards, manifest.modules, stage))

    def places(self, names: Iterable[str]) -> IndexArray:
        """Return the places of those names that a manifest has given one."""
        known = [self._places[name] for name in names if name in self._places]
        return np.array(known, dtype=np.int64)

    def share(self, layout: Layout) -> Layout:
        key = layout.index.tobytes()
        if layout.shards is not None:
            key += layout.shards.partition.tobytes() + layout.shards.number.tobytes()
        # No name of one set of modules can be taken for several of another.
        key += repr(layout.modules).encode() if layout.modules else b""
        key += b"" if layout.stage is None else b"stage %d" % layout.stage
        return self._layouts.setdefault(key, layout)

    def _add_groups(self, manifest: Manifest, index: list[int], limit: int) -> None:
        for group, members in manifest.groups.items():
            known = self._groups.get(group)
            new = {index[i] for i in members}.difference(known or ())
            num_bytes = self.num_bytes + MEMBER_BYTES * len(new)
            # The layers of one group too many stay in no group: watched all the same.
            has_room = known is not None or len(self._groups) < MAX_GROUPS
            if has_room and (num_bytes <= limit or not new):
                self._groups.setdefault(group, set()).update(new)
                self.num_bytes = num_bytes
        self._masks = None

    def groups(self) -> Mapping[str, BoolArray]:
        """Return (layers,) whether it is in the group, of each named group as declared."""
        if self._masks is None:
            self._masks = {name: self._mask(members) for name, members in self._groups.items()}
        return self._masks

    def _mask(self, members: set[int]) -> BoolArray:
        mask = np.zeros(len(self.names), dtype=np.bool_)
        mask[list(members)] = True
        mask.flags.writeable = False  # readers in other threads hold it
        return mask


def layers_bytes(names: Collection[str]) -> int:
    """Return the memory of layers without their groups."""
    return names_bytes(names) + LAYER_BYTES * len(names)


def _shards(texts: tuple[str, ...]) -> Shards | None:
    """Read the shards of a manifest; None if every layer is whole."""
    known = {text: _read(text) for text in set(texts)}
    if all(count == 1 for _, _, count, _ in known.values()):
        return None
    partition, number, count, expert = np.array([known[text] for text in texts], dtype=np.int64).T
    return Shards(partition, number, count, expert.astype(np.bool_))


def _read(text: str) -> tuple[int, int, int, bool]:
    """Return partition, number, count of a shard, and whether it is of an expert."""
    shard = parse_shard(text)
    if shard is not None and shard.placement == UNKNOWN_PLACEMENT:
        return UNKNOWN_PARTITION, shard.number, shard.count + 1, False  # one of them never comes
    if shard is None or shard.count == 1:
        return 0, 0, 1, False
    is_expert = Dimension.EXPERT in shard.placement.split(" ")
    return _partition(shard), shard.number, shard.count, is_expert


def _partition(shard: Shard) -> int:
    """Return a number that shards of one partition have in common, whichever rank sent them."""
    text = f"{shard.count} {shard.placement}"
    return int.from_bytes(blake2s(text.encode(), digest_size=8).digest(), "big", signed=True)
