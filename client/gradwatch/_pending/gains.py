"""Norms at the outputs of blocks, on their way to a GAINS record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from gradwatch._pending.numbers import Values
from gradwatch._pending.record import PendingRecord
from gradwatch._pending.unscaled import unscaled
from gradwatch_wire import Column, Gains
from gradwatch_wire.columns import L2

NORM_TYPE: Final = L2


class PendingGains(PendingRecord):
    """A GAINS record whose norms are on their way.

    Args:
        step: Optimizer step that they belong to.
        blocks: Names, input side first.
        recorded: Which of the blocks have a norm.
        values: The norm of each of these; then the loss scale that they carry, if there is one.
    """

    def __init__(
        self, step: int, blocks: Sequence[str], recorded: Sequence[int], values: Values
    ) -> None:
        self._blocks = tuple(blocks)
        self._recorded = recorded
        super().__init__(step, values)

    def _make(self, values: Sequence[Sequence[float]]) -> list[Gains]:
        found = [number for (number,) in values]
        count = len(self._recorded)
        found, scales = found[:count], found[count:]
        for scale in scales:
            found = unscaled(found, scale)
        norms = [math.nan] * len(self._blocks)
        for index, norm in zip(self._recorded, found, strict=True):
            norms[index] = norm
        column = Column.pack("<f8", norms)
        return [Gains(step=self.step, blocks=self._blocks, norm_type=NORM_TYPE, norms=column)]
