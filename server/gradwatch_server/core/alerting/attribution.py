"""Which layer and ranks a non-finite gradient began at. What cannot be known is not guessed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame, RankPart
from gradwatch_wire.columns import LOCAL_L2, NANS
from gradwatch_wire.health import nonfinite_kind
from gradwatch_wire.names import Scalar


def ranks_of(parts: Iterable[RankPart]) -> tuple[int, ...]:
    """Return the ranks that sent some records, each once, in order."""
    return tuple(sorted({part.rank for part in parts}))


def first_nonfinite(frame: Frame, flagged: BoolArray) -> int | None:
    """Return the index of the flagged layer, (layers,), that was non-finite first, None if unknown.

    Where a record covers several collections, it is not known which of several layers were bad at
    the first of them, and which only later.
    """
    if frame.bad_step != frame.step and np.count_nonzero(flagged) > 1:
        return None
    return first_computed(frame, flagged)


def first_computed(frame: Frame, flagged: BoolArray) -> int | None:
    """Return the flagged layer whose gradient the backward pass computed first.

    That is the last of them in forward order: from there a NaN flowed to all layers before it.
    None unless some record has them all in forward order, and no other contradicts it.
    """
    indices = np.flatnonzero(flagged)
    if len(indices) == 1:
        return int(indices[0])
    last: set[int] = set()
    for part in frame.parts:
        index = part.layout.index
        own = index[flagged[index]]
        if part.ordered and len(own) == len(indices):
            last.add(int(own[-1]))
    return last.pop() if len(last) == 1 else None


def layer_kind(frame: Frame, index: int) -> str:
    """Return `nan` if a NaN was seen in the non-finite layer, else `inf`."""
    nans = frame.column(NANS)[index]
    return "nan" if np.isnan(frame.l2_max[index]) or nans > 0 else "inf"


def nonfinite_ranks(frame: Frame) -> tuple[int, ...]:
    """Return the ranks where something was non-finite before a reduction could spread it.

    An all-reduce carries one rank's NaN to all, a reduce-scatter to the holder of the shard. What
    they cannot reach is the rank's gradient before them, its loss, and the probe of its local
    gradient, so these decide. Without them a rank is named only if it is the only one there is, or
    not every rank is bad, and none of them in a shard of a layer.
    """
    local = ranks_of(part for part in frame.parts if _bad_before_reduction(part, frame))
    local = local or ranks_of(part for part in frame.parts if _bad_loss_or_probe(part))
    if local:
        return local
    parts = [part for part in frame.parts if _bad_at(part, frame) and part.nonfinite.any()]
    bad, seen = ranks_of(parts), ranks_of(frame.parts)
    own = not any(part.reduced for part in frame.parts)
    alone = len(seen) == 1 and frame.coverage == 1.0
    in_piece = any((part.nonfinite & part.layout.is_sharded).any() for part in parts)
    spread = not own and not alone and (in_piece or bad == seen or frame.coverage < 1.0)
    return () if spread else bad


def _bad_before_reduction(part: RankPart, frame: Frame) -> bool:
    """Tell whether the rank's own gradient was bad in a layer that the reduction made bad."""
    if LOCAL_L2 not in part.values:
        return False
    bad = ~np.isfinite(part.values[LOCAL_L2])
    return bool((bad & frame.nonfinite[part.layout.index]).any())


def _bad_loss_or_probe(part: RankPart) -> bool:
    loss = part.scalars.get(Scalar.LOSS, 0.0)
    probe = part.scalars.get(Scalar.LOCAL_PROBE, 0.0)
    return nonfinite_kind(loss) is not None or nonfinite_kind(probe) is not None


def _bad_at(part: RankPart, frame: Frame) -> bool:
    """Tell whether a record may be of the frame's first bad collection."""
    return frame.bad_step in (frame.step, part.scalars.get(Scalar.FIRST_NONFINITE_STEP))
