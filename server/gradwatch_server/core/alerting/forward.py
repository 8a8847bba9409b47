"""Start of a NaN or an Inf in the forward pass, as the outputs of modules show it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradwatch_server.core.alerting.evidence import evidence_of, forward, is_dated
from gradwatch_server.core.frames.frame import Frame, RankRecord
from gradwatch_server.core.frames.outputs import magnitude_of
from gradwatch_wire.names import Scalar


@dataclass(frozen=True, slots=True)
class ForwardOrigin:
    """The first module whose output was non-finite.

    Args:
        magnitude: The largest in its output: NaN or Inf.
    """

    rank: int
    module: str
    magnitude: float


def forward_was_bad(frame: Frame, ranks: tuple[int, ...]) -> bool:
    """Tell whether outputs show it of some of the ranks, of any if these are not known."""
    bad = evidence_of(frame, forward).bad
    return bool(set(bad).intersection(ranks) if ranks else bad)


def find_forward(frame: Frame, ranks: tuple[int, ...]) -> ForwardOrigin | None:
    """Return where it began in the forward pass, None if it did not or that is not known.

    Args:
        ranks: Ranks that it began on, none if they are not known: all count then. If they show
            different modules, none is named.
    """
    parts = [
        part
        for part in frame.parts
        if (not ranks or part.rank in ranks) and is_dated(part, frame) and forward(part, frame)
    ]
    origins = [_first_of(part) for part in parts]
    if not origins or None in origins or len({each.module for each in origins if each}) > 1:
        return None
    return origins[0]


def _first_of(part: RankRecord) -> ForwardOrigin | None:
    place, modules = part.scalars[Scalar.NONFINITE_MODULE], part.layout.modules
    if part.activations is None or place not in range(len(modules)):
        return None
    module = modules[int(place)]
    magnitude = magnitude_of(part.layout, part.activations, module)
    return None if math.isfinite(magnitude) else ForwardOrigin(part.rank, module, magnitude)
