"""Rows: numbers of some items, layers for one, at steps of one epoch, as frames had them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """One number per step and item.

    Args:
        steps: (rows,) optimizer steps, rising.
        times_ns: (rows,) when the last record of each came in, nanoseconds since the epoch.
        skipped: (rows,) whether a GradScaler skipped the step.
        values: (rows, items) the numbers, NaN and Inf as they were.
        known: (rows, items) whether there is one: a layer may be absent, a loss not given.
    """

    steps: IndexArray
    times_ns: IndexArray
    skipped: BoolArray
    values: FloatArray
    known: BoolArray

    def within(self, first: int, last: int) -> Self:
        """Return the rows of the steps in `[first, last]`."""
        span = slice(
            int(np.searchsorted(self.steps, first)), int(np.searchsorted(self.steps, last, "right"))
        )
        return type(self)(
            self.steps[span],
            self.times_ns[span],
            self.skipped[span],
            self.values[span],
            self.known[span],
        )

    @classmethod
    def joined(cls, pieces: Sequence[Rows]) -> Self:
        """Put pieces of the same items together that follow one another."""
        return cls(
            np.concatenate([piece.steps for piece in pieces]),
            np.concatenate([piece.times_ns for piece in pieces]),
            np.concatenate([piece.skipped for piece in pieces]),
            np.concatenate([piece.values for piece in pieces]),
            np.concatenate([piece.known for piece in pieces]),
        )
