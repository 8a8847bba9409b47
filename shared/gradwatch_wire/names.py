"""The vocabulary of records: columns, scalars, labels, events, and where an aggregator listens.

Client and aggregator use these names and nothing else; `docs/statistics.md` explains each, and a
test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Combine(StrEnum):
    """How the numbers of a layer's pieces, one per shard, make that of the whole layer."""

    ROOT_SUM_SQUARES = "root_sum_squares"
    SUM = "sum"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class StatisticColumn:
    """A column of STATS: one number per layer.

    Args:
        name: Its key in the record.
        combine: How the pieces of a sharded layer are put together.
        is_count: Whether it counts elements; others are magnitudes.
        measured: Whether it is computed from one gradient, and can be asked for by
            `attach(columns=...)`; others are derived from several collections, or local.
    """

    name: str
    combine: Combine
    is_count: bool = False
    measured: bool = True


L2: Final = "l2"
L1: Final = "l1"
LINF: Final = "linf"
ZEROS: Final = "zeros"
NANS: Final = "nans"
INFS: Final = "infs"
L2_MAX: Final = "l2_max"
L2_MEAN: Final = "l2_mean"
LOCAL_L2: Final = "local_l2"

STATISTIC_COLUMNS: Final = (
    StatisticColumn(L2, Combine.ROOT_SUM_SQUARES),
    StatisticColumn(L1, Combine.SUM),
    StatisticColumn(LINF, Combine.MAX),
    StatisticColumn(ZEROS, Combine.SUM, is_count=True),
    StatisticColumn(NANS, Combine.SUM, is_count=True),
    StatisticColumn(INFS, Combine.SUM, is_count=True),
    StatisticColumn(L2_MAX, Combine.ROOT_SUM_SQUARES, measured=False),
    StatisticColumn(L2_MEAN, Combine.ROOT_SUM_SQUARES, measured=False),
    StatisticColumn(LOCAL_L2, Combine.ROOT_SUM_SQUARES, measured=False),
)
"""Every column that a STATS record may carry."""

MEASURED_COLUMNS: Final = tuple(column.name for column in STATISTIC_COLUMNS if column.measured)
"""The columns that are computed from one gradient, in the order in which they are sent."""

COUNT_COLUMNS: Final = frozenset(column.name for column in STATISTIC_COLUMNS if column.is_count)
"""The columns that count elements."""


class Scalar(StrEnum):
    """A number of the whole step in STATS."""

    LOSS = "loss"
    BATCH_SIZE = "batch_size"
    LR = "lr"
    LOSS_SCALE = "loss_scale"
    STEP_TIME_S = "step_time_s"
    LOCAL_PROBE = "local_probe"
    COLLECTIONS = "collections"
    FIRST_NONFINITE_STEP = "first_nonfinite_step"


class Label(StrEnum):
    """What the numbers of a STATS record are."""

    POINT = "point"
    SCALED = "scaled"
    REDUCTION = "reduction"
    PATH = "path"


class Point(StrEnum):
    """Values of the label `point`: where in the training step the gradients were read."""

    BACKWARD = "backward"
    COLLECT = "collect"
    OPTIMIZER_STEP = "optimizer_step"


class Reduction(StrEnum):
    """Values of the label `reduction`: what was done to the gradients across ranks."""

    MEAN = "mean"
    NONE = "none"
    UNKNOWN = "unknown"


class LayerOrder(StrEnum):
    """In which order a manifest lists the layers."""

    FORWARD = "forward"
    REGISTRATION = "registration"


class EventName(StrEnum):
    """Names of EVENT records that gradwatch itself sends."""

    SKIPPED_STEP = "skipped_step"


INGEST_PORT: Final = 5555
HTTP_PORT: Final = 8420
DEFAULT_ENDPOINT: Final = f"tcp://127.0.0.1:{INGEST_PORT}"
"""Where the aggregator takes records in, and clients send them."""
DEFAULT_HTTP: Final = f"127.0.0.1:{HTTP_PORT}"
"""Where the aggregator answers HTTP."""
