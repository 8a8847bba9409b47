"""Shards: how a gradient that is a DTensor is divided over the ranks."""

from __future__ import annotations

from typing import Any

from gradwatch._statistics.gradients import is_distributed
from gradwatch_wire.limits import MAX_NAME_BYTES
from gradwatch_wire.shards import Shard


def find_shard(gradient: Any) -> str:
    """Return which shard of a gradient this rank holds, as a manifest declares it.

    Mesh dimensions over which the gradient is replicated do not count: replicas hold the same
    shard, which is how the aggregator knows them.
    """
    if not is_distributed(gradient):
        return ""
    mesh = gradient.device_mesh
    place, number, count = mesh.get_coordinate(), 0, 1
    for dim, placement in enumerate(gradient.placements):
        if placement.is_shard() or not placement.is_replicate():
            number = number * mesh.size(dim) + place[dim]
            count *= mesh.size(dim)
    if count == 1:
        return ""
    placements = " ".join(str(placement) for placement in gradient.placements)
    return str(Shard(number, count, placements.encode()[: MAX_NAME_BYTES // 2].decode()))


def is_replicated(tensor: Any) -> bool:
    """Tell whether every rank holds all of a DTensor."""
    placements = enumerate(tensor.placements)
    return all(each.is_replicate() or tensor.device_mesh.size(dim) == 1 for dim, each in placements)


def is_partial(gradient: Any) -> bool:
    """Tell whether a DTensor still waits for a reduction over ranks: its norm is then unknown."""
    return any(placement.is_partial() for placement in gradient.placements)
