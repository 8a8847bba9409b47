"""Attribution of an alert to a layer and ranks. Nothing that cannot be known is guessed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from gradwatch_server.core.alerting.evidence import (
    evidence_of,
    forward,
    is_dated,
    local,
    loss,
    probe,
)
from gradwatch_server.core.alerting.forward import forward_was_bad
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame, RankRecord
from gradwatch_server.core.frames.replicas import by_layout, shard_keys
from gradwatch_wire.columns import L2, NANS
from gradwatch_wire.names import Scalar

STANDS_OUT: Final = 5.0
"""A rank is the origin of a rise if it has this many times what any other has."""

_KINDS: Final = (local, probe, forward, loss)
"""Evidence that no reduction has spread, the best first: it is of the bad layer itself."""


def ranks_of(parts: Iterable[RankRecord]) -> tuple[int, ...]:
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
        flagged_index = index[flagged[index]]
        if part.ordered and len(flagged_index) == len(indices):
            last.add(int(flagged_index[-1]))
    return last.pop() if len(last) == 1 else None


def may_come_from_loss(frame: Frame, bad: BoolArray) -> bool:
    """Tell whether what is bad, (layers,), may have come from behind the model's last layer.

    What comes from the loss reaches the last layer's gradient first and flows on to others: it is
    not so if the last layer's is fine, or the only bad one.
    """
    first = first_nonfinite(frame, bad)
    if first is None or np.count_nonzero(bad) == 1:
        return False
    return not any(p.ordered and (p.layout.index[:-1] == first).any() for p in frame.parts)


def layer_kind(frame: Frame, index: int) -> str:
    """Return `nan` if a NaN was seen in the non-finite layer, else `inf`."""
    nans = frame.column(NANS)[index]
    return "nan" if np.isnan(frame.l2_max[index]) or nans > 0 else "inf"


def nonfinite_ranks(frame: Frame) -> tuple[int, ...]:
    """Return the ranks where something was non-finite before a reduction could spread it.

    An all-reduce carries one rank's NaN to all, a reduce-scatter to the holder of the shard. What
    they cannot reach is the rank's gradient before them, the probe of its local gradient, the
    outputs of its modules, and its loss. A kind of evidence singles ranks out if another rank shows
    by it that it was fine. If all that show it are bad (NaN weights, a loss that is that of all
    ranks), it may be second-hand to each; they are returned if there is nothing better. Without
    evidence a rank is named only if it is the only one there is, or not every rank is bad, and no
    layer or shard is so on all ranks that hold it.
    """
    seen = ranks_of(frame.parts)
    if len(seen) == 1 and frame.coverage == 1.0:
        return seen
    evidence = [evidence_of(frame, kind) for kind in _KINDS]
    if not any(part.reduced for part in frame.parts):
        return _bad_gradients(frame) or evidence[-1].bad
    for each in evidence:
        if each.bad and each.fine:
            return each.bad
    bad = _bad_gradients(frame)
    if bad and bad != seen and frame.coverage == 1.0 and not _is_without_replica(frame):
        return bad
    showing = next((each.bad for each in evidence if each.bad), ())
    return showing if len(showing) > 1 else ()


def rising_ranks(frame: Frame, layers: BoolArray, usual_loss: float | None) -> tuple[int, ...]:
    """Return the one rank that made norms rise, none where it cannot be known.

    By the best evidence that there is: the ranks' own gradients before the reduction; else what
    they have after it, where that has to be equal and is not; else their losses. What one rank has
    must be 5 times what any other has, and of losses 5 times the usual as well. Where each rank
    that has the layers shows the first of these and none stands out, the others are not asked. Of
    two ranks it is the larger: something has risen.

    Args:
        layers: (layers,) that rose, those of one module.
        usual_loss: None if it is not known, or may be negative.
    """
    if frame.coverage < 1.0 or len(ranks_of(frame.parts)) < 2:
        return ()
    norms = _norms_of(frame.parts, layers, local=True)
    if len(norms) == len({p.rank for p in frame.parts if layers[p.layout.index].any()}):
        # A norm that no rank had before the reduction came later: it is of none of them.
        together = math.hypot(*frame.l2_max[layers & frame.present].tolist())
        return standing_out(norms) if together <= len(norms) * max(norms.values()) else ()
    if frame.disagreement is not None and (frame.disagreement.sums[layers] > 0.0).any():
        return standing_out(_norms_of(frame.parts, layers, local=False))
    return high_loss_ranks(frame, usual_loss)


def high_loss_ranks(frame: Frame, usual: float | None) -> tuple[int, ...]:
    """Return the one rank whose loss is far above the others' and the usual one, if any."""
    losses = {part.rank: part.scalars.get(Scalar.LOSS, math.nan) for part in frame.parts}
    if usual is None or not usual > 0.0 or len(losses) < len(ranks_of(frame.parts)):
        return ()
    outlier = standing_out(losses)
    return outlier if outlier and losses[outlier[0]] > STANDS_OUT * usual else ()


def standing_out(values: Mapping[int, float]) -> tuple[int, ...]:
    """Return the rank whose value is 5 times that of any other, none if there is none."""
    if len(values) < 2 or not all(0.0 <= value < math.inf for value in values.values()):
        return ()
    largest = max(values, key=lambda rank: values[rank])
    next_largest = max(value for rank, value in values.items() if rank != largest)
    return (largest,) if values[largest] > STANDS_OUT * next_largest else ()


def explosion_ranks(frame: Frame, index: int, limit: float) -> tuple[int, ...]:
    """Return the ranks whose own gradient of a layer breaks a limit."""
    only = np.arange(len(frame.present)) == index
    norms = _norms_of(frame.parts, only, local=True)
    return tuple(sorted(rank for rank, norm in norms.items() if norm > limit))


def _norms_of(parts: Iterable[RankRecord], layers: BoolArray, *, local: bool) -> dict[int, float]:
    """Return rank to the L2 norm of some layers together, of the ranks that know all they have."""
    norm_of: dict[int, float] = {}
    for part in parts:
        norms = part.local_l2 if local else part.values[L2]
        chosen = layers[part.layout.index]
        if norms is None or not np.count_nonzero(chosen) or (norms[chosen] < 0.0).any():
            continue
        norm_of[part.rank] = math.hypot(norm_of.get(part.rank, 0.0), *norms[chosen].tolist())
    return norm_of


def loss_was_bad(frame: Frame, ranks: tuple[int, ...]) -> bool | None:
    """Tell whether the loss was non-finite where something first was.

    Args:
        ranks: Ranks that it began on, none if they are not known.

    Returns:
        None if not every loss that matters was given, and none of them is bad.
    """
    evidence = evidence_of(frame, loss)
    matter = set(ranks or ranks_of(frame.parts))
    if matter.issubset(evidence.fine) and (ranks or frame.coverage == 1.0):
        return False
    return True if evidence.bad else None


def was_skipped(frame: Frame) -> bool:
    """Tell whether a GradScaler skipped the step of a frame for an overflow.

    A loss that is not finite, or an output of the forward pass, is no matter of the scale: then the
    step was skipped as well, and not for that.
    """
    scale = frame.loss_scale
    if scale is None or not math.isfinite(scale) or not frame.has_nonfinite:
        return False
    return not loss_was_bad(frame, ()) and not forward_was_bad(frame, ())


def _bad_gradients(frame: Frame) -> tuple[int, ...]:
    return ranks_of(p for p in frame.parts if is_dated(p, frame) and p.nonfinite.any())


def _is_without_replica(frame: Frame) -> bool:
    """Tell whether a layer, or a shard, is bad on all ranks that hold it.

    A reduction to these, such as a reduce-scatter, may have made it so.
    """
    if not frame.has_nonfinite:
        return False
    lonely = []
    for alike in by_layout(frame.parts):
        layout = alike[0].layout
        chosen = frame.nonfinite[layout.index]
        keys = shard_keys(layout)[:, chosen]
        entry = np.zeros((6, keys.shape[1]), dtype=np.int64)  # shard, stage, bad ranks, all ranks
        entry[:3], entry[5] = keys, len(alike)
        entry[3] = -1 if layout.stage is None else layout.stage
        for part in alike:
            if is_dated(part, frame):
                entry[4] += part.nonfinite[chosen]
        lonely.append(entry)
    entries = np.concatenate(lonely, axis=1)
    entries = entries[:, np.lexsort(entries[:4])]
    starts = np.flatnonzero(np.append(True, (entries[:4, 1:] != entries[:4, :-1]).any(axis=0)))
    bad, held = np.add.reduceat(entries[4:], starts, axis=1)
    return bool(((bad == held) & (bad > 0)).any())
