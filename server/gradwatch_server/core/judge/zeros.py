"""Modules whose gradient is exactly zero, counted against how often each was zero before."""

from __future__ import annotations

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

LN_CHANCE: Final = -13.815510557964274
"""ln 1e-6: zeros in a row that are as rare as that, by the share of zeros before, are too many."""

LEAST_RUN: Final = 3
ALIVE_FRAMES: Final = 32
RARE_ALIVE_FRAMES: Final = 128
RARE_SHARE: Final = 0.01
"""Share of zeros before up to which a module that was zero before is paged all the same."""


@dataclass(slots=True)
class Zeros:
    """Counts of zero frames, (modules,) each."""

    alive: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Frames above zero."""
    zeros: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Zero frames before the current run."""
    run: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Zero frames in a row, up to the latest."""
    any_run: bool = False

    def add(self, norms: FloatArray) -> None:
        """Take in the norms of a frame, (modules,), NaN where absent."""
        if len(norms) > len(self.run):
            for name in ("alive", "zeros", "run"):
                setattr(self, name, grown(getattr(self, name), len(norms), 0))
        alive = norms > 0.0
        if not self.any_run and not any_true(~alive):  # nearly always
            self.alive += 1
            return
        woke, died = alive & (self.run > 0), (norms == 0.0) & (self.run == 0)
        if np.count_nonzero(woke) and np.count_nonzero(died):
            self.zeros += died  # experts take turns: to be zero is usual for them
        self.zeros += np.where(alive, self.run, 0)
        self.run = np.where(norms == 0.0, self.run + 1, np.where(alive, 0, self.run))
        self.alive += alive
        self.any_run = bool(np.count_nonzero(self.run))

    def dead(self) -> BoolArray:
        """Return (modules,) whether each was alive, and is zero more often than by chance."""
        share = (self.zeros + 1.0) / (self.alive + self.zeros + 2.0)
        enough = np.ceil(LN_CHANCE / natural_log(share))
        found: BoolArray = (self.alive > self.zeros) & (
            self.run >= np.maximum(enough, np.where(self._is_steady(), 0, LEAST_RUN))
        )
        found |= self._is_steady() & (self.run >= LEAST_RUN)
        return found

    def paged(self) -> BoolArray:
        """Return (modules,) the dead ones that a person should hear of."""
        nothing_alive = not np.count_nonzero((self.run == 0) & (self.alive > 0))
        found: BoolArray = self.dead() & (self._is_steady() | nothing_alive)
        return found

    @property
    def is_dying(self) -> bool:
        """Tell whether a module that was never zero has been for few frames."""
        if not self.any_run:
            return False
        dying = (self.run > 0) & (self.run <= LEAST_RUN) & self._is_steady()
        return bool(np.count_nonzero(dying))

    def _is_steady(self) -> BoolArray:
        never = (self.zeros == 0) & (self.alive >= ALIVE_FRAMES)
        rarely = (self.alive >= RARE_ALIVE_FRAMES) & (self.zeros <= RARE_SHARE * self.alive)
        steady: BoolArray = never | rarely
        return steady
