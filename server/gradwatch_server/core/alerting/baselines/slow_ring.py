"""The slow ring: median and largest of each block of 16 frames, over the last 512 of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.packing import pack, unpack

BLOCK: Final = 16
"""Frames per block."""

BLOCKS: Final = 32


class SlowRing:
    """What many series slowly do. The numbers are kept as float32.

    Attributes:
        num_blocks: Blocks that were ever completed.
    """

    def __init__(self) -> None:
        self.num_blocks = 0
        self._frames = 0  # of the open block
        self._open = np.full((BLOCK, 0), np.nan)
        self._medians = np.full((BLOCKS, 0), np.nan)
        self._maxima = np.full((BLOCKS, 0), np.nan)

    def __len__(self) -> int:
        """Number of blocks there are."""
        return min(self.num_blocks, BLOCKS)

    def add(self, samples: FloatArray) -> bool:
        """Take in a frame; return whether it completed a block.

        Args:
            samples: (series,), NaN where there is none; there may be more series than before.
        """
        more = len(samples) - self._open.shape[1]
        if more:
            self._open = _wider(self._open, more)
            self._medians = _wider(self._medians, more)
            self._maxima = _wider(self._maxima, more)
        self._open[self._frames] = samples
        self._frames += 1
        if self._frames < BLOCK:
            return False
        ordered = np.sort(self._open, axis=0)  # NaN last
        count = BLOCK - np.count_nonzero(np.isnan(ordered), axis=0)
        series = np.arange(ordered.shape[1])
        low = ordered[np.maximum(count - 1, 0) // 2, series]
        high = ordered[count // 2, series]
        at = self.num_blocks % BLOCKS
        # Of a block with few samples nothing is said.
        enough = count >= BLOCK // 2
        self._medians[at] = np.where(enough, _narrow((low + high) / 2.0), np.nan)
        self._maxima[at] = np.where(enough, _narrow(ordered[count - 1, series]), np.nan)
        self.num_blocks += 1
        self._frames = 0
        return True

    def medians(self) -> FloatArray:
        """Return (blocks, series), oldest first, NaN where most frames had no sample."""
        return self._medians[self._order()]

    def maxima(self) -> FloatArray:
        """Return (blocks, series) largest samples, likewise."""
        return self._maxima[self._order()]

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {
            "num_blocks": self.num_blocks,
            "open": pack(self._open[: self._frames]),
            "medians": pack(self._medians),
            "maxima": pack(self._maxima),
        }

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        self.num_blocks = plain["num_blocks"]
        self._medians = np.array(unpack(plain["medians"]), dtype=np.float64)
        self._maxima = np.array(unpack(plain["maxima"]), dtype=np.float64)
        rows = np.array(unpack(plain["open"]), dtype=np.float64)
        self._frames = len(rows)
        self._open = np.full((BLOCK, rows.shape[1]), np.nan)
        self._open[: self._frames] = rows

    def _order(self) -> list[int]:
        count = len(self)
        return [number % BLOCKS for number in range(self.num_blocks - count, self.num_blocks)]


def _wider(rows: FloatArray, more: int) -> FloatArray:
    return np.hstack([rows, np.full((len(rows), more), np.nan)])


def _narrow(values: FloatArray) -> FloatArray:
    return values.astype(np.float32).astype(np.float64)
