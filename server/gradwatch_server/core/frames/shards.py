"""Layers that are cut over ranks, put together: each piece once, however many ranks hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from gradwatch_server.core.frames.frame import FloatArray, IndexArray, Layout, Shards
from gradwatch_server.core.frames.rows import add_pieces, merge_replicas, nonfinite, withhold

Block: TypeAlias = tuple[Layout, FloatArray]
"""Rows, as `rows` describes them, of the layers of a layout: (rows, own layers)."""


def join(blocks: Sequence[Block]) -> tuple[list[Block], int]:
    """Replace the blocks of cut layers by one of whole layers.

    Returns:
        The blocks, and how many layers lack a piece: these are left out, or without their norms if
        a piece of them is non-finite.
    """
    whole = [block for block in blocks if block[0].pieces is None]
    cut = [block for block in blocks if block[0].pieces is not None]
    if not cut:
        return whole, 0
    joined, num_partial = _put_together(cut)
    return [*whole, joined], num_partial


def _put_together(blocks: Sequence[Block]) -> tuple[Block, int]:
    layer, held = _side_by_side([layout for layout, _ in blocks])
    order = np.lexsort((held.piece, held.cut, layer))
    layer, cut, piece, pieces = (
        array[order] for array in (layer, held.cut, held.piece, held.pieces)
    )
    rows = np.concatenate([block for _, block in blocks], axis=1)[:, order]

    starts = _starts(layer, cut, piece)
    rows = merge_replicas(rows, starts)
    layer, cut, pieces = layer[starts], cut[starts], pieces[starts]

    starts = _starts(layer, cut)
    complete = np.diff(starts, append=len(layer)) == pieces[starts]
    rows, layer = add_pieces(rows, starts), layer[starts]
    num_partial = len(np.setdiff1d(layer, layer[complete]))

    kept = complete | nonfinite(rows)
    withhold(rows, ~complete)
    rows, layer = rows[:, kept], layer[kept]
    # Ranks that disagree on how a layer is cut are replicas of each other.
    starts = _starts(layer)
    return (Layout(layer[starts]), merge_replicas(rows, starts)), num_partial


def _side_by_side(layouts: Sequence[Layout]) -> tuple[IndexArray, Shards]:
    """Return layer and piece of all entries of the layouts, (all own layers,) each."""
    pieces = [layout.pieces for layout in layouts if layout.pieces is not None]
    return np.concatenate([layout.index for layout in layouts]), Shards(
        cut=np.concatenate([own.cut for own in pieces]),
        piece=np.concatenate([own.piece for own in pieces]),
        pieces=np.concatenate([own.pieces for own in pieces]),
    )


def _starts(*keys: IndexArray) -> IndexArray:
    """Return where a run of equal *keys*, (entries,) each and sorted, begins."""
    changes = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    first = np.ones(min(1, len(keys[0])), dtype=np.bool_)
    return np.flatnonzero(np.concatenate([first, changes]))
