"""Where trouble began: step, rank, layer, value. What cannot be known is None, never a guess."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from gradwatch_server.core.alerting.attribution import first_nonfinite, layer_kind, nonfinite_ranks
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.health import nonfinite_kind


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

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `from_state_dict`."""
        return asdict(self)

    @classmethod
    def from_state_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Return what `state_dict` described."""
        before = tuple((step, l2) for step, l2 in plain["before"])
        return cls(**{**plain, "ranks": tuple(plain["ranks"]), "before": before})


@dataclass(frozen=True, slots=True)
class FirstBad:
    """The first non-finite gradient or loss of an attempt; the keys are those of `/health`."""

    step: int
    rank: int | None
    layer: str | None
    kind: str


def find_first_bad(frame: Frame, names: tuple[str, ...]) -> FirstBad | None:
    """Return what `/health` keeps as `first_bad` if *frame* has anything non-finite.

    Args:
        frame: A closed step.
        names: (layers,) names of its layers.
    """
    if frame.nonfinite.any():
        known = first_nonfinite(frame, frame.nonfinite)
        index = int(np.flatnonzero(frame.nonfinite)[-1]) if known is None else known
        layer = None if known is None else names[known]
        return FirstBad(frame.bad_step, _one_rank(frame), layer, layer_kind(frame, index))
    if frame.loss is None or (kind := nonfinite_kind(frame.loss)) is None:
        return None
    return FirstBad(frame.step, _one_rank(frame), None, kind)


def _one_rank(frame: Frame) -> int | None:
    ranks = nonfinite_ranks(frame)
    return ranks[0] if len(ranks) == 1 else None
