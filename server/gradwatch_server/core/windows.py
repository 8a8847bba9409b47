"""The window: the last closed frames of an attempt, in one array that is written in a ring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from gradwatch_server.core.frames import L2, BoolArray, FloatArray, Frame, IndexArray

WINDOW_STEPS: Final = 512

_FIRST_ROWS: Final = 32


@dataclass(frozen=True, slots=True)
class Series:
    """Numbers per step over the window, oldest first, (steps,) each."""

    steps: IndexArray
    total_norm: FloatArray  # NaN where it was, or is not known
    known: BoolArray  # whether the total norm is
    score: FloatArray  # NaN where no layer could be judged
    coverage: FloatArray
    loss: FloatArray  # NaN where no rank gave one


class Window:
    """The last *steps* frames: values of (steps, columns, layers) and numbers per step."""

    def __init__(self, steps: int = WINDOW_STEPS) -> None:
        self._capacity = steps
        self._kept: list[int] = []  # rows of `COLUMNS` that were ever measured
        self._values = np.full((min(_FIRST_ROWS, steps), 0, 0), np.nan)
        # Rows per step, those of `Series`. A float64 keeps every step exact.
        self._steps = np.zeros((6, steps))
        self._count = 0

    def __len__(self) -> int:
        """Number of frames in the window."""
        return min(self._count, self._capacity)

    def add(self, frame: Frame, score: float) -> None:
        """Write a frame over the oldest one."""
        at = self._count % self._capacity
        layers = frame.columns.shape[1]
        self._kept += [row for row in frame.measured if row not in self._kept]
        self._fit(at + 1, layers)
        self._values[at, :, :layers] = frame.columns[self._kept]
        self._values[at, :, layers:] = np.nan
        loss = np.nan if frame.loss is None else frame.loss
        known = frame.total_norm is not None
        norm = frame.total_norm if known else np.nan
        self._steps[:, at] = (frame.step, norm, known, score, frame.coverage, loss)
        self._count += 1

    def before(self, layer: int, most: int) -> tuple[tuple[int, float], ...]:
        """Return `(step, L2 norm)` of a layer in those of the last *most* frames that had it."""
        if L2 not in self._kept or layer >= self._values.shape[2]:
            return ()
        order = self._order()[-most:]
        values = self._values[order, self._kept.index(L2), layer]
        had = ~np.isnan(values)
        steps = self._steps[0, order[had]].astype(np.int64)
        return tuple(zip(steps.tolist(), values[had].tolist(), strict=True))

    def series(self) -> Series:
        """Return a copy of the numbers per step."""
        rows = self._steps[:, self._order()]
        rows.flags.writeable = False
        steps, total_norm, known, score, coverage, loss = rows
        return Series(steps.astype(np.int64), total_norm, known > 0.0, score, coverage, loss)

    def _order(self) -> IndexArray:
        count = len(self)
        first = self._count - count
        return (np.arange(first, first + count) % self._capacity).astype(np.int64)

    def _fit(self, rows: int, layers: int) -> None:
        """Grow to *rows* by doubling, to the columns kept, and to *layers*."""
        have_rows, have_columns, have_layers = self._values.shape
        if rows <= have_rows and layers <= have_layers and len(self._kept) == have_columns:
            return
        new_rows = have_rows if rows <= have_rows else min(2 * have_rows, self._capacity)
        grown = np.full((new_rows, len(self._kept), max(layers, have_layers)), np.nan)
        grown[:have_rows, :have_columns, :have_layers] = self._values
        self._values = grown
