"""The columns of STATS: a line of `STATISTIC_COLUMNS` each, and one of `docs/statistics.md`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Combine(StrEnum):
    """Combination of the numbers of a layer's shards into that of the whole layer."""

    ROOT_SUM_SQUARES = "root_sum_squares"
    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class StatisticColumn:
    """A column of STATS: one number per layer.

    Args:
        is_count: Whether it is a whole number, mostly of elements; others are magnitudes.
        measured: Whether it is computed from one gradient, and can be asked for by
            `attach(columns=...)`; others are derived from several collections, or local.
        counts_nonfinite: Whether it counts elements that are NaN or Inf: of a layer that lacks a
            shard, what the others counted still holds.
        nan_is_value: Whether NaN is a value like any other, which no number of a replica may
            hide; in other columns it says that the layer was not measured.
    """

    name: str
    combine: Combine
    is_count: bool = False
    measured: bool = True
    counts_nonfinite: bool = False
    nan_is_value: bool = False


L2: Final = "l2"
L1: Final = "l1"
LINF: Final = "linf"
ZEROS: Final = "zeros"
NANS: Final = "nans"
INFS: Final = "infs"
L2_MAX: Final = "l2_max"
L2_MEAN: Final = "l2_mean"
LOCAL_L2: Final = "local_l2"
WEIGHT_L2: Final = "weight_l2"
WEIGHT_LINF: Final = "weight_linf"
WEIGHT_BITS: Final = "weight_bits"
UPDATE_RMS: Final = "update_rms"
WEIGHT_RMS: Final = "weight_rms"
UNCHANGED: Final = "unchanged"

UNKNOWN: Final = -1.0
"""Any negative number in `local_l2`, where NaN is a value: the layer was not measured there."""

STATISTIC_COLUMNS: Final = (
    StatisticColumn(L2, Combine.ROOT_SUM_SQUARES, nan_is_value=True),
    StatisticColumn(L1, Combine.SUM),
    StatisticColumn(LINF, Combine.MAX),
    StatisticColumn(ZEROS, Combine.SUM, is_count=True),
    StatisticColumn(NANS, Combine.SUM, is_count=True, counts_nonfinite=True),
    StatisticColumn(INFS, Combine.SUM, is_count=True, counts_nonfinite=True),
    StatisticColumn(L2_MAX, Combine.ROOT_SUM_SQUARES, measured=False, nan_is_value=True),
    StatisticColumn(L2_MEAN, Combine.ROOT_SUM_SQUARES, measured=False, nan_is_value=True),
    StatisticColumn(LOCAL_L2, Combine.ROOT_SUM_SQUARES, measured=False, nan_is_value=True),
    StatisticColumn(WEIGHT_L2, Combine.ROOT_SUM_SQUARES, measured=False, nan_is_value=True),
    StatisticColumn(WEIGHT_LINF, Combine.MAX, measured=False),
    # Modulo 2^64: beyond what a float64 keeps.
    StatisticColumn(WEIGHT_BITS, Combine.SUM, is_count=True, measured=False),
    # Of a shard these are its part in the number of the whole layer.
    StatisticColumn(UPDATE_RMS, Combine.ROOT_SUM_SQUARES, measured=False),
    StatisticColumn(WEIGHT_RMS, Combine.ROOT_SUM_SQUARES, measured=False),
    StatisticColumn(UNCHANGED, Combine.SUM, measured=False),
)
"""Every column that a STATS record may carry."""

MEASURED_COLUMNS: Final = tuple(column.name for column in STATISTIC_COLUMNS if column.measured)
"""The columns that are computed from one gradient, in the order in which they are sent."""

COUNT_COLUMNS: Final = frozenset(column.name for column in STATISTIC_COLUMNS if column.is_count)
"""The columns that count elements."""

NONFINITE_COUNTS: Final = tuple(c.name for c in STATISTIC_COLUMNS if c.counts_nonfinite)
"""The columns that count elements that are NaN or Inf."""

WEIGHT_COLUMNS: Final = (WEIGHT_L2, WEIGHT_LINF, WEIGHT_BITS)
"""The digest of the weights, which a record in a hundred has."""

UPDATE_COLUMNS: Final = (UPDATE_RMS, WEIGHT_RMS, UNCHANGED)
"""Sizes of the step of the weights, which a record in some has: estimates from a sample."""

NOT_SEEN: Final = -1.0
"""In place of the magnitude of a module that returned nothing: no magnitude is negative."""
