"""Evidence of each rank where a frame went bad: numbers that no reduction has reached.

They are of the collection at which something was non-finite first. Once the optimizer has stepped,
the weights of all ranks may be bad, and each shows it by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gradwatch_server.core.frames.frame import Frame, RankRecord
from gradwatch_wire.columns import NOT_SEEN
from gradwatch_wire.health import nonfinite_kind
from gradwatch_wire.names import Scalar


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """Ranks with and without a bad number of one kind.

    Args:
        bad: Ranks with a non-finite one, in order.
        fine: Ranks with finite ones only; those that gave none are in neither.
    """

    bad: tuple[int, ...]
    fine: tuple[int, ...]


Kind = Callable[[RankRecord, Frame], bool | None]
"""Tells whether a record shows something non-finite; None if it has no such number."""


def evidence_of(frame: Frame, kind: Kind) -> RankEvidence:
    """Return what the records of the first bad collection show of their ranks."""
    shown = [(part.rank, kind(part, frame)) for part in frame.parts if is_dated(part, frame)]
    bad = {rank for rank, state in shown if state}
    fine = {rank for rank, state in shown if state is False} - bad
    return RankEvidence(tuple(sorted(bad)), tuple(sorted(fine)))


def is_dated(part: RankRecord, frame: Frame) -> bool:
    """Tell whether a record's evidence is of the frame's first bad step.

    A record of several collections has kept it from the first that was bad. One in which none was
    shows that its rank was fine.
    """
    named = part.scalars.get(Scalar.FIRST_NONFINITE_STEP)
    if named is None:
        return frame.bad_step == frame.step
    return named == frame.bad_step or math.isnan(named)


def local(part: RankRecord, frame: Frame) -> bool | None:
    """Tell whether the rank's own gradient was bad in a layer that the reduction made bad.

    Over several steps the norms are the largest of all, maybe of a later one.
    """
    if frame.bad_step != frame.step or (norms := part.local_l2) is None:
        return None
    matter = frame.nonfinite[part.layout.index] & ~(norms < 0.0)
    return bool((~np.isfinite(norms[matter])).any()) if matter.any() else None


def probe(part: RankRecord, _: Frame) -> bool | None:
    """Tell whether the sum of a few local gradients was bad."""
    return _is_bad(part.scalars.get(Scalar.LOCAL_PROBE))


def forward(part: RankRecord, frame: Frame) -> bool | None:
    """Tell whether a module's output was bad in the forward pass."""
    if part.activations is None or (part.activations == NOT_SEEN).all():
        return None
    if Scalar.NONFINITE_MODULE not in part.scalars:
        return False
    step = part.scalars.get(Scalar.NONFINITE_MODULE_STEP, float(frame.step))
    # Of an output that was bad before the first bad gradient nobody knows how it was there.
    return True if step == frame.bad_step else False if step > frame.bad_step else None


def loss(part: RankRecord, frame: Frame) -> bool | None:
    """Tell whether the loss was bad, which may be that of all ranks together."""
    first = part.scalars.get(Scalar.FIRST_NONFINITE_LOSS)
    if first is None and frame.bad_step == frame.step:
        first = part.scalars.get(Scalar.LOSS)  # in a record of several steps it is their mean
    return _is_bad(first)


def _is_bad(number: float | None) -> bool | None:
    return None if number is None else nonfinite_kind(number) is not None
