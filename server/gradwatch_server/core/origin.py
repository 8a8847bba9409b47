"""Where trouble began: step, rank, layer, value. What cannot be known is None, never a guess."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gradwatch_server.core.frames import NANS, BoolArray, Frame, RankPart
from gradwatch_server.core.rules import RuleName, Rules, worst_layer
from gradwatch_wire.health import nonfinite_kind


@dataclass(frozen=True, slots=True)
class Origin:
    """The first sign of an alert.

    Args:
        step: First bad step.
        rank: The one rank it began on; None when it shows on several and none can be singled out.
        ranks: Ranks it showed on before any reduction could spread it, else all it showed on.
        layer: Name of the layer; None when it cannot be known.
        kind: `nan` or `inf` for a non-finite gradient, else None.
        value: The layer's L2 norm there.
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


Bad = Callable[[RankPart], BoolArray]


def find_layer(name: RuleName, frame: Frame, raised: BoolArray) -> int | None:
    """Return the index of the layer to name for what rule *name* raised, None if unknown."""
    if name == "nonfinite":
        return first_computed(frame, raised)
    return worst_layer(name, frame, raised)


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
        own = part.index[marked[part.index]]
        if part.ordered and len(own) == len(indices):
            last.add(int(own[-1]))
    return last.pop() if len(last) == 1 else None


def find_origin(
    name: RuleName, frame: Frame, raised: BoolArray, rules: Rules, names: tuple[str, ...]
) -> Origin:
    """Find where *frame* first shows what rule *name* raised."""
    known = find_layer(name, frame, raised)
    index = worst_layer(name, frame, raised) if known is None else known
    value = float(frame.l2_min[index] if name == "vanishing" else frame.l2_max[index])
    kind = None
    if name == "nonfinite":
        kind = layer_kind(frame, index)
        ranks = nonfinite_ranks(frame)
    else:
        ranks = _ranks_breaking(name, frame, index, rules)
    return Origin(
        step=frame.step,
        rank=ranks[0] if len(ranks) == 1 else None,
        ranks=ranks,
        layer=None if known is None else names[known],
        kind=kind,
        value=value,
        threshold=None if name == "nonfinite" else getattr(rules, name).limit,
    )


def layer_kind(frame: Frame, index: int) -> str:
    """Return `nan` if a NaN was seen in the layer, else `inf`."""
    nans = frame.columns[NANS, index]
    return "nan" if np.isnan(frame.l2_max[index]) or nans > 0 else "inf"


def nonfinite_ranks(frame: Frame) -> tuple[int, ...]:
    """Return the ranks where something was non-finite before a reduction could spread it.

    An all-reduce carries one rank's NaN to all. What it cannot reach is the rank's own loss and
    the probe of its local gradient, so these decide. Without them a rank is named only if it is
    the only one there is, or not every rank is bad.
    """
    local = {part.rank for part in frame.parts if _locally_bad(part)}
    if local:
        return tuple(sorted(local))
    bad = {part.rank for part in frame.parts if part.nonfinite.any()}
    own = all(part.labels.get("reduction") == "none" for part in frame.parts)
    seen = {part.rank for part in frame.parts}
    alone = len(seen) == 1 and frame.coverage == 1.0
    spread = not own and not alone and (bad == seen or frame.coverage < 1.0)
    return () if spread else tuple(sorted(bad))


def _locally_bad(part: RankPart) -> bool:
    loss = part.scalars.get("loss", 0.0)
    probe = part.scalars.get("local_probe", 0.0)
    return nonfinite_kind(loss) is not None or nonfinite_kind(probe) is not None


def _ranks_breaking(name: RuleName, frame: Frame, index: int, rules: Rules) -> tuple[int, ...]:
    ranks = []
    for part in frame.parts:
        own = part.values["l2"][part.index == index]
        broken = own > rules.exploding.limit if name == "exploding" else own < rules.vanishing.limit
        if broken.any():
            ranks.append(part.rank)
    return tuple(sorted(set(ranks)))


def find_first_bad(frame: Frame, names: tuple[str, ...], rules: Rules) -> FirstBad | None:
    """Return what `/health` keeps as `first_bad` if *frame* has anything non-finite."""
    if frame.nonfinite.any():
        origin = find_origin("nonfinite", frame, frame.nonfinite, rules, names)
        return FirstBad(frame.step, origin.rank, origin.layer, origin.kind or "nan")
    if frame.loss is None or (kind := nonfinite_kind(frame.loss)) is None:
        return None
    ranks = nonfinite_ranks(frame)
    return FirstBad(frame.step, ranks[0] if len(ranks) == 1 else None, None, kind)
