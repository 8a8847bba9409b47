"""Activity of layers and modules: which join or leave, are exactly zero, or are too small.

The norm of a module, or of all of them, is only comparable with earlier ones that are of the same
layers.
"""

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

LEFT_FRAMES: Final = 16
"""Frames in a row without a layer after which it has left."""

NEVER: Final = -1


@dataclass(frozen=True, slots=True)
class Absence:
    """Layers of one frame that are not as before, (layers,) each.

    Args:
        missing: Not there, but in one of the last `LEFT_FRAMES` frames.
        changed: Joined with this frame, or left for good.
    """

    missing: BoolArray
    changed: BoolArray


@dataclass(slots=True)
class Presence:
    """Layers of the latest frames, (layers,) each."""

    num_frames: int = 0
    seen_at: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Number of the latest frame with the layer, `NEVER` without one."""
    back_at: IndexArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Number of the first frame from which on each frame has had the layer, up to `seen_at`."""
    norm: FloatArray = field(default_factory=lambda: np.zeros(0))
    """Norm in the latest frame with the layer."""
    are_all: bool = True
    """Whether all were there in the latest frame."""

    def add(self, present: BoolArray, norms: FloatArray, *, is_whole: bool) -> Absence | None:
        """Take in a frame; return what is not as before, None if nothing is.

        Args:
            is_whole: Whether all ranks are in it: else nothing joins or leaves.
        """
        number, num = self.num_frames, len(present)
        if not is_whole and not self.num_frames:
            return None
        self.num_frames += is_whole
        is_grown = num > len(self.seen_at)
        if is_grown:
            self.seen_at = grown(self.seen_at, num, NEVER)
            self.back_at = grown(self.back_at, num, number)
            self.norm = grown(self.norm, num, np.nan)
        are_all = 0 not in present.tobytes()
        if are_all and self.are_all and not is_grown:  # nearly always
            if not is_whole:
                return None
            self.seen_at[:], self.norm[:] = number, norms
            return None
        since = number - self.seen_at
        known = self.seen_at != NEVER
        joined = present & (~known | (since > LEFT_FRAMES))
        left = ~present & known & (since == LEFT_FRAMES + 1)
        missing = ~present & known & (since <= LEFT_FRAMES)
        if not is_whole:
            return Absence(missing, np.zeros_like(missing))
        self.back_at[present & (since > 1)] = number
        self.seen_at[present], self.norm[present] = number, norms[present]
        self.are_all = are_all
        return Absence(missing, (joined | left) & (number > 0))

    def frames_in_a_row(self) -> IndexArray:
        """Return (layers,) the frames in a row with each layer, up to the one before the latest."""
        latest = self.num_frames - 1
        in_a_row: IndexArray = np.where(self.seen_at >= latest - 1, latest - self.back_at, 0)
        return in_a_row


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
        dead: BoolArray = (self.alive > self.zeros) & (
            self.run >= np.maximum(enough, np.where(self._is_steady(), 0, LEAST_RUN))
        )
        dead |= self._is_steady() & (self.run >= LEAST_RUN)
        return dead

    def paged(self) -> BoolArray:
        """Return (modules,) the dead ones that a person should hear of."""
        nothing_alive = not np.count_nonzero((self.run == 0) & (self.alive > 0))
        paged: BoolArray = self.dead() & (self._is_steady() | nothing_alive)
        return paged

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
