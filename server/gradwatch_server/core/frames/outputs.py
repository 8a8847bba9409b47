"""Outputs of modules: how large those of the last frames were, rank by rank."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.frames.layout import Layout
from gradwatch_wire.columns import NOT_SEEN

KEPT_FRAMES: Final = 5

MAX_KEPT: Final = 1 << 20
"""Numbers that are kept: with very many ranks and modules those of fewer frames."""


@dataclass(frozen=True, slots=True)
class _RankOutputs:
    rank: int
    layout: Layout
    magnitudes: FloatArray


@dataclass(slots=True)
class OutputHistory:
    """The magnitudes that the last frames had, for as many frames as an origin shows."""

    _frames: deque[tuple[int, list[_RankOutputs]]] = field(
        default_factory=lambda: deque(maxlen=KEPT_FRAMES)
    )

    def add(self, frame: Frame) -> None:
        """Take in a frame; one without magnitudes leaves nothing."""
        outputs = [
            _RankOutputs(part.rank, part.layout, part.activations)
            for part in frame.parts
            if part.activations is not None
        ]
        if outputs:
            self._frames.append((frame.step, outputs))
        while len(self._frames) > 1 and self._size() > MAX_KEPT:
            self._frames.popleft()

    def before(self, rank: int, module: str) -> tuple[tuple[int, float], ...]:
        """Return `(step, magnitude)` of a module's output on a rank, oldest first."""
        magnitudes = (
            (step, _largest([output for output in ranks if output.rank == rank], module))
            for step, ranks in self._frames
        )
        return tuple((step, largest) for step, largest in magnitudes if largest != NOT_SEEN)

    def _size(self) -> int:
        return sum(len(output.magnitudes) for _, ranks in self._frames for output in ranks)


def magnitude_of(layout: Layout, magnitudes: FloatArray, module: str) -> float:
    """Return what a record says of a module's output, `NOT_SEEN` if nothing."""
    if module not in layout.modules:
        return NOT_SEEN
    return float(magnitudes[layout.modules.index(module)])


def _largest(ranks: Sequence[_RankOutputs], module: str) -> float:
    magnitudes = [magnitude_of(output.layout, output.magnitudes, module) for output in ranks]
    return math.nan if any(map(math.isnan, magnitudes)) else max(magnitudes, default=NOT_SEEN)
