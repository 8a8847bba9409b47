"""The window: numbers of the last frames of an attempt, and the L2 norms of the newest of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.frames.frame import Frame
from gradwatch_wire.columns import L2

WINDOW_STEPS: Final = 512

NUMBERS: Final = 6
"""Numbers of a step, those of `Series`."""

RECENT_FRAMES: Final = 16
"""Frames of which the norms of all layers are kept."""

SPACING: Final = 8
"""Frames between two whose norms are kept longer, for the usual norm of a layer."""

MIN_SPACED: Final = 4
"""Such frames from which on the usual norm is of them; it is of the recent ones before."""


@dataclass(frozen=True, slots=True)
class Series:
    """Numbers per step over the window, oldest first, (steps,) each."""

    steps: IndexArray
    total_norm: FloatArray  # NaN where it was, or is not known
    known: BoolArray  # whether the total norm is
    score: FloatArray  # NaN where no layer is known
    coverage: FloatArray
    loss: FloatArray  # NaN where no rank gave one


def _no_rows() -> FloatArray:
    return np.full((RECENT_FRAMES, 0), np.nan)


@dataclass(slots=True)
class Window:
    """The last *capacity* frames.

    Args:
        numbers: (6, capacity) numbers per step, those of `Series`, as a circular buffer.
        recent: (16, layers) L2 norms in the newest frames, NaN where absent, as a circular buffer.
        spaced: (16, layers) L2 norms of every eighth frame.
    """

    capacity: int = WINDOW_STEPS
    count: int = 0
    size: int = 0
    numbers: FloatArray = field(default_factory=lambda: np.zeros((NUMBERS, 0)))
    recent: FloatArray = field(default_factory=_no_rows)
    spaced: FloatArray = field(default_factory=_no_rows)

    def __len__(self) -> int:
        return self.size

    def add(self, frame: Frame, score: float) -> None:
        """Write a frame over the oldest one."""
        at = self.count % self.capacity
        if at >= self.numbers.shape[1]:  # a short run does not pay for the whole window
            room = min(max(2 * at, RECENT_FRAMES), self.capacity)
            self.numbers = _wider(self.numbers, room)
        known = frame.total_norm is not None
        norm = frame.total_norm if known else np.nan
        loss = np.nan if frame.loss is None else frame.loss
        # A float64 keeps every step exact.
        self.numbers[:, at] = (frame.step, norm, known, score, frame.coverage, loss)
        l2 = frame.column(L2)
        if len(l2) > self.recent.shape[1]:
            self.recent, self.spaced = _wider(self.recent, len(l2)), _wider(self.spaced, len(l2))
        _write(self.recent, self.count, l2)
        if self.count % SPACING == 0:
            _write(self.spaced, self.count // SPACING, l2)
        self.count += 1
        self.size = min(self.size + 1, self.capacity)

    def step_before(self, step: int) -> int | None:
        """Return the newest step below one, None if there is none; steps may have gone back."""
        steps = self.numbers[0, self._order()]
        back = np.flatnonzero(np.diff(steps) <= 0)
        steps = steps[back[-1] + 1 if len(back) else 0 :]
        place = int(np.searchsorted(steps, step))
        return int(steps[place - 1]) if place else None

    def ends_with(self, total_norm: float | None) -> bool:
        """Tell whether the newest frame has this total norm, and it is not 0."""
        if not total_norm or not self.size:
            return False
        return bool(self.numbers[1, (self.count - 1) % self.capacity] == total_norm)

    @property
    def newest_norms(self) -> FloatArray:
        """(layers,) L2 norms in the newest frame, NaN of a layer that was not there."""
        newest: FloatArray = self.recent[(self.count - 1) % RECENT_FRAMES]
        return newest

    def before(self, layer: int, limit: int) -> tuple[tuple[int, float], ...]:
        """Return `(step, L2 norm)` of a layer in those of the last frames that had it.

        Args:
            limit: Frames to look at, the newest; no more than 16 are known.
        """
        if layer >= self.recent.shape[1]:
            return ()
        newest = np.arange(self.count - min(limit, RECENT_FRAMES, self.size), self.count)
        norms = self.recent[newest % RECENT_FRAMES, layer]
        had = ~np.isnan(norms)
        steps = self.numbers[0, newest[had] % self.capacity].astype(np.int64)
        return tuple(zip(steps.tolist(), norms[had].tolist(), strict=True))

    def rows(self) -> tuple[IndexArray, FloatArray, FloatArray]:
        """Return the frames whose norms are kept, oldest first.

        Returns:
            (frames,) steps; how many frames each stands for, 1 or 8; (frames, layers) L2 norms.
        """
        recent = np.arange(max(self.count - RECENT_FRAMES, 0), self.count)
        newest = recent[0] if len(recent) else 0
        spaced = np.arange(-(-self.count // SPACING) - RECENT_FRAMES, -(-newest // SPACING))
        spaced = spaced[spaced >= -(-(self.count - self.size) // SPACING)]
        recent = recent[recent >= self.count - self.size]
        frames = np.concatenate([spaced * SPACING, recent])
        norms = np.vstack(
            [self.spaced[spaced % RECENT_FRAMES], self.recent[recent % RECENT_FRAMES]]
        )
        steps = self.numbers[0, frames % self.capacity].astype(np.int64)
        return steps, np.repeat([float(SPACING), 1.0], [len(spaced), len(recent)]), norms

    def usual(self, layers: IndexArray) -> FloatArray:
        """Return (layers,) the median L2 norm of some layers, NaN of one that is not known."""
        num_spaced = -(-self.count // SPACING)
        known = self.spaced if num_spaced >= MIN_SPACED else self.recent
        medians = np.full(len(layers), np.nan)
        there = np.flatnonzero(layers < known.shape[1])
        norms = known[:, layers[there]]
        is_known = ~np.isnan(norms).all(axis=0)
        # The two in the middle are added: halved, their sum stays within float64.
        medians[there[is_known]] = np.nanmedian(norms[:, is_known] * 0.5, axis=0) * 2.0
        return medians

    def series(self) -> Series:
        """Return a copy of the numbers per step."""
        rows = self.numbers[:, self._order()]
        rows.flags.writeable = False
        steps, total_norm, known, score, coverage, loss = rows
        return Series(steps.astype(np.int64), total_norm, known > 0.0, score, coverage, loss)

    def forget_norms(self) -> None:
        """Free the norms of all layers; the numbers per step stay."""
        self.recent, self.spaced = _no_rows(), _no_rows()

    def resize(self, capacity: int) -> None:
        """Hold another number of frames from now on."""
        order = self._order()[-capacity:]
        numbers = np.zeros((NUMBERS, capacity))
        # The next frame goes over the oldest, wherever the count stands.
        numbers[:, np.arange(self.count - len(order), self.count) % capacity] = self.numbers[
            :, order
        ]
        self.numbers, self.capacity, self.size = numbers, capacity, len(order)

    def _order(self) -> IndexArray:
        newest = np.arange(self.count - self.size, self.count)
        return (newest % self.capacity).astype(np.int64)


def _wider(rows: FloatArray, size: int) -> FloatArray:
    more = np.full((len(rows), size - rows.shape[1]), np.nan)
    return np.concatenate([rows, more], axis=1)


def _write(ring: FloatArray, number: int, l2: FloatArray) -> None:
    row = ring[number % RECENT_FRAMES]
    row[len(l2) :] = np.nan
    row[: len(l2)] = l2
