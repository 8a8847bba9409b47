"""Norms of each rank's own gradients before the ranks were averaged, side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradwatch_server.core.arrays import FloatArray, IndexArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.frames.replicas import by_layout


@dataclass(frozen=True, slots=True, eq=False)
class RankNorms:
    """L2 norms of ranks that have the same layers.

    Args:
        l2: (ranks, own layers) L2 norms, negative where not known.
    """

    index: IndexArray
    ranks: IndexArray
    l2: FloatArray


def local_norms(frame: Frame) -> list[RankNorms]:
    """Return the local norms of a frame's ranks, those with the same layers together."""
    rank_norms: list[RankNorms] = []
    if not frame.has_local_norms:  # nearly always
        return rank_norms
    for alike in by_layout(frame.parts):
        known = [(part.rank, norms) for part in alike if (norms := part.local_l2) is not None]
        if known:
            ranks = np.array([rank for rank, _ in known], dtype=np.int64)
            l2 = np.stack([norms for _, norms in known])
            rank_norms.append(RankNorms(alike[0].layout.index, ranks, l2))
    return rank_norms
