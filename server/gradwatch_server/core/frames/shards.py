"""Sharded layers, put together: each shard once, however many ranks hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from gradwatch_server.core.arrays import FloatArray, IndexArray
from gradwatch_server.core.frames.layout import Layout, Shards
from gradwatch_server.core.frames.rows import merge_replicas, merge_shards, nonfinite, withhold

Block: TypeAlias = tuple[Layout, FloatArray]
"""Rows, as `rows` describes them, of the layers of a layout: (rows, own layers)."""


def join(blocks: Sequence[Block]) -> tuple[list[Block], int]:
    """Replace the blocks of sharded layers by one of whole layers.

    Returns:
        The blocks, and how many layers lack a shard: these are left out, or without their norms if
        a shard of them is non-finite.
    """
    whole = [block for block in blocks if block[0].shards is None]
    sharded = [block for block in blocks if block[0].shards is not None]
    if not sharded:
        return whole, 0
    joined, num_partial = _put_together(sharded)
    return [*whole, joined], num_partial


def _put_together(blocks: Sequence[Block]) -> tuple[Block, int]:
    layer, shards = _side_by_side([layout for layout, _ in blocks])
    order = np.lexsort((shards.number, shards.partition, layer))
    layer, partition, number, count = (
        array[order] for array in (layer, shards.partition, shards.number, shards.count)
    )
    rows = np.concatenate([block for _, block in blocks], axis=1)[:, order]

    starts = _starts(layer, partition, number)
    rows = merge_replicas(rows, starts)
    layer, partition, count = layer[starts], partition[starts], count[starts]

    starts = _starts(layer, partition)
    complete = np.diff(starts, append=len(layer)) == count[starts]
    rows, layer = merge_shards(rows, starts), layer[starts]
    num_partial = len(np.setdiff1d(layer, layer[complete]))

    kept = complete | nonfinite(rows)
    withhold(rows, ~complete)
    rows, layer = rows[:, kept], layer[kept]
    # Ranks that disagree on how a layer is divided are replicas of each other.
    starts = _starts(layer)
    return (Layout(layer[starts]), merge_replicas(rows, starts)), num_partial


def _side_by_side(layouts: Sequence[Layout]) -> tuple[IndexArray, Shards]:
    """Return layer and shard of all entries of the layouts, (all own layers,) each."""
    shards = [layout.shards for layout in layouts if layout.shards is not None]
    return np.concatenate([layout.index for layout in layouts]), Shards(
        partition=np.concatenate([own.partition for own in shards]),
        number=np.concatenate([own.number for own in shards]),
        count=np.concatenate([own.count for own in shards]),
    )


def _starts(*keys: IndexArray) -> IndexArray:
    """Return where a run of equal *keys*, (entries,) each and sorted, begins."""
    changes = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    first = np.ones(min(1, len(keys[0])), dtype=np.bool_)
    return np.flatnonzero(np.concatenate([first, changes]))
