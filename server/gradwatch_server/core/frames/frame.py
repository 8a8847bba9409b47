"""Frames: what one step of an attempt was, over all its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
IndexArray: TypeAlias = npt.NDArray[np.int64]

COLUMNS: Final = ("l2", "l1", "linf", "zeros", "nans", "infs")
"""The columns that a frame keeps, in the order of its rows."""

RUNNING_MAX: Final = "l2_max"
LOCAL_L2: Final = "local_l2"

COLUMNS_READ: Final = (*COLUMNS, RUNNING_MAX, LOCAL_L2)
"""The columns of a record that the fold looks at."""

L2, L1, LINF, ZEROS, NANS, INFS = range(len(COLUMNS))

FIRST_NONFINITE: Final = "first_nonfinite_step"


@dataclass(frozen=True, slots=True, eq=False)
class Shards:
    """Which piece of each layer a rank holds, (own layers,) each.

    Args:
        cut: How the layer is cut: pieces with the same belong together. 0 for a whole layer.
        piece: Which of them, from 0.
        pieces: How many there are, 1 for a whole layer.
    """

    cut: IndexArray
    piece: IndexArray
    pieces: IndexArray


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Layout:
    """What the columns of a record stand for. Ranks of one layout share one object.

    Args:
        index: (own layers,) position of each in the attempt's layers.
        pieces: What the rank holds of them, None if every layer is whole.
    """

    index: IndexArray
    pieces: Shards | None = None

    @property
    def cut(self) -> BoolArray:
        """(own layers,) whether the rank holds one of several pieces."""
        if self.pieces is None:
            return np.zeros(len(self.index), dtype=np.bool_)
        several: BoolArray = self.pieces.pieces > 1
        return several


@dataclass(frozen=True, slots=True)
class RankPart:
    """One STATS record in the layer order of its attempt.

    Args:
        rank: Global rank.
        layout: The layers it is about.
        ordered: Whether they follow the forward pass.
        values: Column to (own layers,) float64.
        scalars: Numbers of the whole step.
        labels: What the numbers are.
    """

    rank: int
    layout: Layout
    ordered: bool
    values: Mapping[str, FloatArray]
    scalars: Mapping[str, float]
    labels: Mapping[str, object]

    @property
    def peak(self) -> FloatArray:
        """(own layers,) largest L2 norm of the collections since the last record, NaN first."""
        l2 = self.values["l2"]
        return np.maximum(l2, self.values[RUNNING_MAX]) if RUNNING_MAX in self.values else l2

    @property
    def nonfinite(self) -> BoolArray:
        """(own layers,) whether the layer's gradient has a NaN or an Inf."""
        bad: BoolArray = ~np.isfinite(self.peak)
        for name in ("nans", "infs"):
            if name in self.values:
                bad |= self.values[name] > 0
        return bad

    @property
    def reduced(self) -> bool:
        """Whether the gradients may hold what other ranks put into a reduction."""
        return self.labels.get("reduction") != "none"


@dataclass(frozen=True, slots=True)
class Frame:
    """A closed step. Where ranks disagree, the extremes are kept; the rules need no more.

    A layer that is cut over ranks is put together from its pieces. If one is missing, the layer
    is absent, unless one of those that came is non-finite: that much is known then.

    Args:
        step: Optimizer step.
        bad_step: The step at which a non-finite gradient was first collected, if any was: an
            earlier one than `step` where records cover several collections.
        received_ns: When its last record came in.
        parts: The records it was made of.
        present: (layers,) whether any rank reported the layer.
        nonfinite: (layers,) whether any rank saw a NaN or an Inf there.
        l2_max: (layers,) largest L2 norm over ranks and over the collections since the last
            record, NaN where absent or NaN. Of a cut layer it is at most too large: its pieces
            may have been largest at different collections.
        l2_min: (layers,) smallest L2 norm over ranks at this step, NaN likewise.
        measured: Rows of `columns` that any rank reported.
        columns: (columns, layers) in the order of `COLUMNS`, at this step: the largest over
            ranks; NaN where not measured.
        num_partial: How many cut layers lack a piece.
        total_norm: Largest over ranks of the L2 norm of all layers together; with cut layers the
            L2 norm of the layers put together, None if one lacks a piece.
        loss: Mean over the ranks that gave one, weighted by samples if all of these gave their
            number; NaN if one of them was NaN; None without any.
        loss_scale: Smallest over the records that gave one, None without a GradScaler.
        coverage: Share of the ranks of the job that are in it.
    """

    step: int
    bad_step: int
    received_ns: int
    parts: tuple[RankPart, ...]
    present: BoolArray
    nonfinite: BoolArray
    l2_max: FloatArray
    l2_min: FloatArray
    measured: tuple[int, ...]
    columns: FloatArray
    num_partial: int
    total_norm: float | None
    loss: float | None
    loss_scale: float | None
    coverage: float
