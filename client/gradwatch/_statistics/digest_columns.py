"""The columns of a digest on their way to the host, where all numbers are float64."""

from __future__ import annotations

from typing import Final

from gradwatch_wire.columns import WEIGHT_BITS, WEIGHT_L2, WEIGHT_LINF

BITS_LOW: Final = "weight_bits_low"
BITS_HIGH: Final = "weight_bits_high"
"""The two halves of `weight_bits`, 32 bits each: both are exact."""

DIGEST_COLUMNS: Final = frozenset({WEIGHT_L2, WEIGHT_LINF, BITS_LOW, BITS_HIGH})


def join_bits(columns: dict[str, list[float]]) -> None:
    """Put the halves of the sums of bits together, if there are any."""
    if BITS_LOW in columns:
        halves = zip(columns.pop(BITS_LOW), columns.pop(BITS_HIGH), strict=True)
        columns[WEIGHT_BITS] = [int(low) | int(high) << 32 for low, high in halves]
