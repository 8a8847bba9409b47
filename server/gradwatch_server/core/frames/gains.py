"""Gains between blocks at one step, over the ranks that measured them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.frames.assembler import StepRecords
from gradwatch_server.core.frames.sizes import RECORD_BYTES, array_bytes, names_bytes
from gradwatch_wire.gains import gains

Numbers = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class RankGains:
    """One GAINS record: norms are (blocks,), NaN where none was recorded."""

    rank: int
    blocks: tuple[str, ...]
    norm_type: str
    norms: FloatArray

    @property
    def num_bytes(self) -> int:
        return RECORD_BYTES + array_bytes(self.norms) + names_bytes(self.blocks)


@dataclass(frozen=True, slots=True)
class GainFrame:
    """The gains of a closed step.

    Gradients at the blocks' outputs are each rank's own, so the norms are means over the ranks.

    Args:
        norm_type: `l2`, `l1`, `linf` or `mean`.
        norms: Mean norm at each block's output, None where no rank has one.
        smallest: Smallest norm over ranks, None where no rank has one.
        largest: Largest norm over ranks, None where no rank has one.
        gains: One per transition, None where a norm is missing.
    """

    step: int
    received_ns: int
    ranks: tuple[int, ...]
    norm_type: str
    blocks: tuple[str, ...]
    norms: Numbers
    smallest: Numbers
    largest: Numbers
    gains: Numbers

    def transition(self, number: int) -> str:
        return f"{self.blocks[number]} -> {self.blocks[number + 1]}"


def merge_gains(gathered: StepRecords[RankGains]) -> GainFrame:
    """Put the gains of one step together. Ranks with other blocks than the first are left out."""
    parts = sorted(gathered.items, key=lambda part: part.rank)
    first = parts[0]
    alike = [p for p in parts if (p.blocks, p.norm_type) == (first.blocks, first.norm_type)]
    norms = np.stack([part.norms for part in alike])  # (ranks, blocks)
    norms = np.where(norms >= 0.0, norms, np.nan)  # what is negative is no norm
    count = (~np.isnan(norms)).sum(axis=0)
    largest = np.fmax.reduce(norms)
    with np.errstate(over="ignore"):
        # Divided first: the sum of finite norms may overflow; rounding may make it too large still.
        mean = np.fmin(np.nansum(norms / np.maximum(count, 1), axis=0), largest)
    mean[count == 0] = np.nan
    numbers = _plain(mean)
    return GainFrame(
        step=gathered.step,
        received_ns=gathered.received_ns,
        ranks=tuple(part.rank for part in alike),
        norm_type=first.norm_type,
        blocks=first.blocks,
        norms=numbers,
        smallest=_plain(np.fmin.reduce(norms)),
        largest=_plain(largest),
        gains=tuple(gains(numbers)),
    )


def _plain(norms: FloatArray) -> Numbers:
    return tuple(None if math.isnan(norm) else norm for norm in norms.tolist())
