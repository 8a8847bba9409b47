"""Shards: how a gradient that is a DTensor is cut over the ranks."""

from __future__ import annotations

from typing import Any

from gradwatch._statistics.gradients import is_distributed
from gradwatch_wire.limits import MAX_NAME_BYTES
from gradwatch_wire.shards import Shard


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


def is_partial(gradient: Any) -> bool:
    """Tell whether a DTensor still waits for a reduction over ranks: its norm is then unknown."""
    return any(placement.is_partial() for placement in gradient.placements)
