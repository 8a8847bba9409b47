"""Where trouble began: step, rank, layer, value. What cannot be known is None, never a guess."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwatch_server.core.alerting.rules import (
    GainRule,
    LayerRuleName,
    Rules,
    worst_gain,
    worst_layer,
)
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.frames.frame import Frame, RankPart
from gradwatch_server.core.frames.gains import GainFrame
from gradwatch_wire.health import nonfinite_kind
from gradwatch_wire.names import L2, LOCAL_L2, NANS, Scalar

STANDS_OUT: Final = 10.0
"""A rank's own gradient is the origin if it is this many times the median of all ranks'."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The first sign of an alert.

    Args:
        step: First bad step.
        rank: The one rank it began on; None when it shows on several and none can be singled out.
        ranks: Ranks it showed on before any reduction could spread it, else all it showed on.
        layer: Name of the layer, or of the transition between blocks; None when it cannot be known.
        kind: `nan` or `inf` for a non-finite gradient, else None.
        value: The layer's L2 norm there, or the transition's gain.
        threshold: The limit it broke, None where the rule has none.
        before: `(step, L2 norm)` of the same layer in the few frames before, oldest first.
    """

    step: int
    rank: int | None
    ranks: tuple[int, ...]
    layer: str | None
    kind: str | None
    value: float
    threshold: float | None
    before: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class FirstBad:
    """The first non-finite gradient or loss of an attempt; the keys are those of `/health`."""

    step: int
    rank: int | None
    layer: str | None
    kind: str


def find_layer(name: LayerRuleName, frame: Frame, raised: BoolArray) -> int | None:
    """Return the index of the layer to name for what rule *name* raised, None if unknown."""
    if name != "nonfinite":
        return worst_layer(name, frame, raised)
    if frame.bad_step != frame.step and np.count_nonzero(raised) > 1:
        return None  # which of them were bad at that step, and which only later, is not known
    return first_computed(frame, raised)


def first_computed(frame: Frame, marked: BoolArray) -> int | None:
    """Return the marked layer whose gradient the backward pass computed first.

    That is the last of them in forward order: from there a NaN flowed to all layers before it.
    None unless some record has them all in forward order, and no other contradicts it.
    """
    indices = np.flatnonzero(marked)
    if len(indices) == 1:
        return int(indices[0])
    last: set[int] = set()
    for part in frame.parts:
        index = part.layout.index
        own = index[marked[index]]
        if part.ordered and len(own) == len(indices):
            last.add(int(own[-1]))
    return last.pop() if len(last) == 1 else None


def find_origin(
    name: LayerRuleName, frame: Frame, raised: BoolArray, rules: Rules, names: tuple[str, ...]
) -> Origin:
    """Say where a frame first shows what rule *name* raised."""
    known = find_layer(name, frame, raised)
    index = worst_layer(name, frame, raised) if known is None else known
    bad = name == "nonfinite"
    ranks = nonfinite_ranks(frame) if bad else ranks_breaking(name, frame, index, rules)
    return Origin(
        step=frame.bad_step if bad else frame.step,
        rank=ranks[0] if len(ranks) == 1 else None,
        ranks=ranks,
        layer=None if known is None else names[known],
        kind=layer_kind(frame, index) if bad else None,
        value=float(frame.l2_min[index] if name == "vanishing" else frame.l2_max[index]),
        threshold=None if name == "nonfinite" else getattr(rules, name).limit,
    )


def find_gain_origin(frame: GainFrame, rule: GainRule) -> Origin:
    """Name the transition whose gain is farthest from 1."""
    worst = worst_gain(frame.gains, rule)
    gain = frame.gains[worst]
    value = math.nan if gain is None else gain
    return Origin(
        step=frame.step,
        rank=frame.ranks[0] if len(frame.ranks) == 1 else None,
        ranks=frame.ranks,
        layer=frame.transition(worst),
        kind=None,
        value=value,
        threshold=rule.high if value > rule.high else rule.low,
    )


def layer_kind(frame: Frame, index: int) -> str:
    """Return `nan` if a NaN was seen in the layer, else `inf`."""
    nans = frame.column(NANS)[index]
    return "nan" if np.isnan(frame.l2_max[index]) or nans > 0 else "inf"


def nonfinite_ranks(frame: Frame) -> tuple[int, ...]:
    """Return the ranks where something was non-finite before a reduction could spread it.

    An all-reduce carries one rank's NaN to all, a reduce-scatter to whoever holds that piece. What
    they cannot reach is the rank's gradient before them, its loss, and the probe of its local
    gradient, so these decide. Without them a rank is named only if it is the only one there is, or
    not every rank is bad, and none of them in a piece of a layer.
    """
    local = _ranks(part for part in frame.parts if _bad_before_reduction(part, frame))
    local = local or _ranks(part for part in frame.parts if _bad_loss_or_probe(part))
    if local:
        return local
    parts = [part for part in frame.parts if _bad_at(part, frame) and part.nonfinite.any()]
    bad, seen = _ranks(parts), _ranks(frame.parts)
    own = not any(part.reduced for part in frame.parts)
    alone = len(seen) == 1 and frame.coverage == 1.0
    in_piece = any((part.nonfinite & part.layout.is_sharded).any() for part in parts)
    spread = not own and not alone and (in_piece or bad == seen or frame.coverage < 1.0)
    return () if spread else bad


def _ranks(parts: Iterable[RankPart]) -> tuple[int, ...]:
    return tuple(sorted({part.rank for part in parts}))


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


def ranks_breaking(name: LayerRuleName, frame: Frame, index: int, rules: Rules) -> tuple[int, ...]:
    """Return the ranks whose gradient of a layer breaks the limit; by their own, if they tell.

    A piece says nothing of the rank that holds it: what is in it came from all.
    """
    if name == "exploding":
        culprits = _exploding_before_reduction(frame, index, rules.exploding.limit)
        if culprits:
            return culprits
    found = []
    for part in frame.parts:
        own = part.layout.index == index
        if part.reduced and part.layout.is_sharded[own].any():
            return ()
        if name == "exploding":
            broken = part.peak[own] > rules.exploding.limit
        else:
            broken = part.values[L2][own] < rules.vanishing.limit
        if broken.any():
            found.append(part)
    return _ranks(found)


def _exploding_before_reduction(frame: Frame, index: int, limit: float) -> tuple[int, ...]:
    """Return the ranks whose own gradient breaks the limit, else the one that stands out."""
    local: dict[int, float] = {}
    for part in frame.parts:
        if LOCAL_L2 in part.values:
            own = part.values[LOCAL_L2][part.layout.index == index]
            local.update((part.rank, norm) for norm in own.tolist())
    breaking = tuple(sorted(rank for rank, norm in local.items() if norm > limit))
    if breaking or len(local) < len(_ranks(frame.parts)) or frame.coverage < 1.0:
        return breaking
    largest = max(local, key=lambda rank: local[rank])
    median = float(np.median(list(local.values())))
    return (largest,) if local[largest] > STANDS_OUT * median else ()


def find_first_bad(frame: Frame, names: tuple[str, ...], rules: Rules) -> FirstBad | None:
    """Return what `/health` keeps as `first_bad` if *frame* has anything non-finite."""
    if frame.nonfinite.any():
        origin = find_origin("nonfinite", frame, frame.nonfinite, rules, names)
        return FirstBad(origin.step, origin.rank, origin.layer, origin.kind or "nan")
    if frame.loss is None or (kind := nonfinite_kind(frame.loss)) is None:
        return None
    ranks = nonfinite_ranks(frame)
    return FirstBad(frame.step, ranks[0] if len(ranks) == 1 else None, None, kind)
