"""Modules whose gradient is too small by itself, without any history to compare it with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import (
    BoolArray,
    FloatArray,
    IndexArray,
    any_true,
    grown,
    natural_log,
)

DEPTH_FRAMES: Final = 16
LEAST_MODULES: Final = 4
FAR_BELOW: Final = 9.210340371976184
"""ln 1e4: nats below the upper half of all modules at which a module is cut off by depth."""

STILL: Final = 1e-6
"""Share of itself below which the loss does not move."""

WAS_ALIVE: Final = 10.0
"""Times the limit: a module that was above it has come down."""


@dataclass(slots=True)
class Smallness:
    """Largest norms, and how long each module was far below the others from the beginning."""

    largest: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(modules,) largest norm so far, NaN without any."""
    deep_frames: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """(modules,) frames among the first 16 in which a module was far below."""
    num_frames: int = 0
    still_frames: int = 0
    """Frames in a row in which the loss did not move."""
    last_loss: float = math.inf
    any_deep: bool = False
    """Whether one was far below the others in all of the first 16 frames."""

    def add(self, norms: FloatArray, numel: FloatArray, loss: float) -> None:
        """Take in a frame.

        Args:
            norms: (modules,) L2 norms, NaN where absent.
            numel: (modules,) elements, 0 where not known.
            loss: Loss, NaN without one.
        """
        if len(norms) > len(self.largest):
            self.largest = grown(self.largest, len(norms), math.nan)
            self.deep_frames = grown(self.deep_frames, len(norms), 0)
        np.fmax(self.largest, norms, out=self.largest)
        moved = abs(loss - self.last_loss)
        self.still_frames = self.still_frames + 1 if moved <= STILL * abs(loss) else 0
        self.last_loss = math.inf if math.isnan(loss) else loss
        if self.num_frames < DEPTH_FRAMES:
            self.deep_frames += far_below(norms, numel)
        self.num_frames += 1
        if self.num_frames == DEPTH_FRAMES:
            self.any_deep = any_true(self.is_deep)

    @property
    def is_deep(self) -> BoolArray:
        """(modules,) whether each was far below the others in all of the first 16 frames."""
        return (self.deep_frames >= DEPTH_FRAMES) & (self.num_frames >= DEPTH_FRAMES)


def far_below(norms: FloatArray, numel: FloatArray) -> BoolArray:
    """Return (modules,) those in the front half whose norm per element is far below the others.

    Silent where all shrink together, and where the smallest is in the back half or the last module
    is low: that is no loss of gradient by depth.
    """
    none: BoolArray = np.zeros(len(norms), dtype=np.bool_)
    alive = norms > 0.0
    if np.count_nonzero(alive) < LEAST_MODULES or len(numel) != len(norms) or not numel.all():
        return none
    places = np.flatnonzero(alive)
    q = natural_log(norms[places] / np.sqrt(numel[places]))
    half = (len(places) + 1) // 2
    top = float(np.median(np.sort(q)[-half:]))
    low = q < top - FAR_BELOW
    if not low.any() or low[-1] or int(np.argmin(q)) >= half:
        return none
    none[places[:half][low[:half]]] = True
    return none
