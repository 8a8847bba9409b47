"""Hits: in how many of the last eight frames each series was beyond a limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gradwatch_server.core.arrays import BoolArray

MAX_FRAMES: Final = 8

_COUNTS: Final = np.array([bits.bit_count() for bits in range(256)], dtype=np.uint8)


class Hits:
    """One bit per frame and series, the newest lowest."""

    def __init__(self) -> None:
        self._bits: npt.NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self._since = MAX_FRAMES  # frames since any hit: all bits are 0 after so many

    def add(self, hit: BoolArray, least: int, frames: int) -> BoolArray:
        """Take in a frame; return (series,) whether it and others are *least* of the last *frames*.

        Args:
            hit: (series,) whether it is beyond the limit; there may be more series than before.
            least: Hits that are enough, this frame's among them.
            frames: From 1 to 8.
        """
        if len(self._bits) < len(hit):
            more = np.zeros(len(hit) - len(self._bits), dtype=np.uint8)
            self._bits = np.concatenate([self._bits, more])
        if not np.count_nonzero(hit):  # nearly always
            if self._since < MAX_FRAMES:
                self._since += 1
                self._bits <<= 1
            return hit
        self._since = 0
        self._bits <<= 1
        self._bits |= hit.astype(np.uint8)
        enough: BoolArray = hit & (_COUNTS[self._bits & ((1 << frames) - 1)] >= least)
        return enough

    @property
    def is_empty(self) -> bool:
        """Whether there was no hit in the last eight frames."""
        return self._since >= MAX_FRAMES

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `load_state_dict`."""
        return {"bits": self._bits.tobytes()}

    def load_state_dict(self, plain: Mapping[str, Any]) -> None:
        """Take over what `state_dict` described."""
        self._bits = np.frombuffer(plain["bits"], dtype=np.uint8).copy()
        self._since = 0
