"""Frames: what one step of an attempt was, over all its ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Self

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray, numbers
from gradwatch_server.core.frames.idle import LayersWithoutGradient, idle_layers
from gradwatch_server.core.frames.layout import Layout
from gradwatch_server.core.frames.rows import FRAME_COLUMNS, ROW_OF
from gradwatch_server.core.frames.sizes import RECORD_BYTES, array_bytes, keys_bytes, labels_bytes
from gradwatch_server.core.frames.step_numbers import StepNumbers, merge_steps
from gradwatch_server.core.state_codec import Shared
from gradwatch_wire import Column
from gradwatch_wire.columns import (
    L2,
    L2_MAX,
    LOCAL_L2,
    NONFINITE_COUNTS,
    UNKNOWN,
    WEIGHT_L2,
    WEIGHT_LINF,
)
from gradwatch_wire.names import Label, Reduction
from gradwatch_wire.value import value

COLUMNS_READ: Final = frozenset({*FRAME_COLUMNS, L2_MAX, LOCAL_L2, WEIGHT_L2, WEIGHT_LINF})
"""The columns of a record that the aggregator looks at."""


@dataclass(frozen=True, slots=True)
class SavedColumns:
    """Columns of a record in a saved state.

    Args:
        entry: Number of the record in the log of its run, which keeps the numbers.
        columns: The columns themselves, of a record that may wait for longer than the log.
    """

    entry: int
    names: tuple[str, ...]
    columns: Mapping[str, Column] | None = None


class RecordColumns(Shared):
    """Columns of one STATS record.

    Args:
        entry: Number of the record in the log of its run.
        columns: Columns that the aggregator reads, as they came; empty ones until `read` after a
            restart.
        is_whole: Whether a saved state has the numbers, too.
    """

    STATE = SavedColumns
    __slots__ = ("columns", "entry", "is_whole")

    def __init__(
        self, entry: int, columns: Mapping[str, Column], *, is_whole: bool = False
    ) -> None:
        self.entry, self.columns, self.is_whole = entry, columns, is_whole

    def read(self, columns: Mapping[str, Column]) -> None:
        """Take the numbers from the record as the log has it.

        Raises:
            KeyError: If it lacks one of the columns.
        """
        self.columns = {name: columns[name] for name in self.columns}

    def to_state(self) -> SavedColumns:
        columns = self.columns if self.is_whole else None
        return SavedColumns(self.entry, tuple(self.columns), columns)

    @classmethod
    def from_state(cls, state: SavedColumns) -> Self:
        if state.columns is not None:
            return cls(state.entry, state.columns, is_whole=True)
        return cls(state.entry, dict.fromkeys(state.names, _UNREAD))


_UNREAD: Final = Column.pack("<f8", ())


@value(eq=False, slots=False)
class RankRecord:
    """One STATS record in the layer order of its attempt.

    Args:
        ordered: Whether they follow the forward pass.
        activations: (modules of the layout,) largest magnitude in the outputs of each, `NOT_SEEN`
            of one that returned none; None without any.
        weight_bits: (own layers,) the sum of the bits of the rank's weights, modulo 2^64; None
            where they were not looked at.
        idle: What its manifest says of layers that are not in it; None if nothing.
        number: Which record of the rank at this step it is, from 0.
        parts: How many there are.
        last_good_step: The newest step before that the rank inspected and found finite, -1 if none
            was or that is not known.
        history: Steps since the rank's last record, None if there are none.
        batch: What its batch was, as the training script says; empty if it does not.
        place: Place of its rank in the groups of the job, in words; empty if that is not known.
    """

    rank: int
    layout: Layout
    ordered: bool
    record: RecordColumns
    scalars: Mapping[str, float]
    labels: Mapping[str, object]
    activations: FloatArray | None = None
    weight_bits: IndexArray | None = None
    idle: LayersWithoutGradient | None = None
    step: int = 0
    number: int = 0
    parts: int = 1
    last_good_step: int = -1
    history: StepNumbers | None = None
    batch: str = ""
    place: str = ""

    @property
    def columns(self) -> Mapping[str, Column]:
        """Columns that the aggregator reads, as they came."""
        return self.record.columns

    @cached_property
    def values(self) -> Mapping[str, FloatArray]:
        """Column to (own layers,) float64."""
        return {name: numbers(column) for name, column in self.record.columns.items()}

    @property
    def peak(self) -> FloatArray:
        """(own layers,) largest L2 norm of the collections since the last record, NaN first."""
        l2 = self.values[L2]
        if L2_MAX not in self.values:
            return l2
        return np.maximum(l2, self.values[L2_MAX])

    @property
    def nonfinite(self) -> BoolArray:
        """(own layers,) whether the layer's gradient has a NaN or an Inf."""
        bad: BoolArray = ~np.isfinite(self.peak)
        for name in NONFINITE_COUNTS:
            if name in self.values:
                bad |= self.values[name] > 0
        return bad

    @property
    def local_l2(self) -> FloatArray | None:
        """(own layers,) L2 norms of the rank's own gradients, negative where not known.

        What a rank holds of a sharded layer is there only after a reduction: it is never its own.
        """
        if LOCAL_L2 not in self.columns:
            return None
        return np.where(self.layout.is_sharded, UNKNOWN, self.values[LOCAL_L2])

    @property
    def reduced(self) -> bool:
        """Reduction of the gradients: true if they may hold numbers of other ranks."""
        return self.labels.get(Label.REDUCTION) != Reduction.NONE

    @property
    def num_bytes(self) -> int:
        """Bytes in memory, without the layout and the idle layers, which belong to the manifest."""
        num_bytes = RECORD_BYTES + keys_bytes(tuple(self.scalars)) + len(self.batch)
        num_bytes += len(self.record.columns) * self.layout.column_bytes
        if self.labels:
            num_bytes += labels_bytes(tuple(self.labels.items()))
        for array in (self.activations, self.weight_bits):
            if array is not None:
                num_bytes += array_bytes(array)
        return num_bytes if self.history is None else num_bytes + self.history.num_bytes


@dataclass(slots=True, eq=False)
class Disagreement:
    """By how much replicas of one step differ.

    Args:
        exact: (layers,) largest relative difference between two ranks in the largest magnitude and
            the counts; NaN where no two ranks can be compared, Inf where only one is non-finite.
        sums: (layers,) the same of the L2 and the L1 norm.
        is_uniform: Whether all ranks compute their numbers in the same way.
        weights: (layers,) whether the digests of the weights differ.
        weights_seen: (layers,) whether two ranks sent one.
        is_equal: Whether no byte differs and there are no digests.
    """

    exact: FloatArray
    sums: FloatArray
    is_uniform: bool
    weights: BoolArray
    weights_seen: BoolArray
    is_equal: bool = False

    @property
    def seen(self) -> BoolArray:
        """(layers,) whether the gradients of two ranks could be compared."""
        return ~np.isnan(self.sums)

    @classmethod
    def of_nothing(cls, num_layers: int) -> Self:
        """Return that of records in which nothing can be compared."""
        numbers = np.full((2, num_layers), np.nan)
        flags = np.zeros((2, num_layers), dtype=np.bool_)
        return cls(numbers[0], numbers[1], True, flags[0], flags[1])


@dataclass(frozen=True, slots=True)
class Frame:
    """A closed step. Where ranks disagree, the extremes are kept; the rules need no more.

    A layer that is sharded over ranks is put together from its shards. If one is missing, the
    layer is absent, unless one of those that came is non-finite: that much is known then.

    Args:
        bad_step: The step at which a non-finite gradient was first collected, if any was: an
            earlier one than `step` where records cover several collections.
        present: (layers,) whether any rank reported the layer.
        nonfinite: (layers,) whether any rank saw a NaN or an Inf there.
        l2_max: (layers,) largest L2 norm over ranks and over the collections since the last
            record, NaN where absent or NaN. Of a sharded layer it is at most too large: its shards
            may have been largest at different collections.
        l2_min: (layers,) smallest L2 norm over ranks at this step, NaN where absent or NaN.
        measured: The columns that any rank reported, in the order of `FRAME_COLUMNS`.
        columns: (columns, layers) in the order of `FRAME_COLUMNS`, at this step: the largest over
            ranks; NaN where not measured.
        total_norm: Largest over ranks of the L2 norm of all layers together. Where layers are
            sharded, or ranks hold different ones, the L2 norm of the layers put together, each
            once; None if one lacks a shard.
        loss: Mean over the ranks that gave one, weighted by samples if all of these gave their
            number; NaN if one of them was NaN; None without any.
        loss_scale: Smallest over the records that gave one, None without a GradScaler.
        coverage: Share of the ranks of the job that are in it.
        point: Where in the training step its gradients were read, None if its records differ.
        lr: Largest learning rate over the records that gave one, None without any.
        step_time_s: Largest step time over the records that gave one, seconds, None without any.
        disagreement: By how much ranks differ in what has to be equal on them; None if nothing has.
        is_finite: Whether none is, and the loss is finite, if there is one.
        last_good_step: Newest step before `bad_step` that all ranks inspected and found finite:
            what is non-finite began after it. None if there is none, or it is not known.
    """

    step: int
    bad_step: int
    received_ns: int
    parts: tuple[RankRecord, ...]
    present: BoolArray
    nonfinite: BoolArray
    l2_max: FloatArray
    l2_min: FloatArray
    measured: tuple[str, ...]
    columns: FloatArray
    num_partial: int
    total_norm: float | None
    loss: float | None
    loss_scale: float | None
    coverage: float
    point: str | None = None
    lr: float | None = None
    step_time_s: float | None = None
    disagreement: Disagreement | None = None
    has_nonfinite: bool = False
    is_finite: bool = True
    has_all_layers: bool = True
    has_local_norms: bool = False
    has_outputs: bool = False
    last_good_step: int | None = None

    @property
    def is_after_gap(self) -> bool:
        """Position: true if steps before `bad_step` were not inspected."""
        return self.last_good_step is not None and self.last_good_step < self.bad_step - 1

    def batch_of(self, rank: int | None, step: int) -> str:
        """Return what the batch of a rank was, empty if that is not known or of another step."""
        if rank is None or step != self.step:
            return ""
        return next((part.batch for part in self.parts if part.rank == rank), "")

    def place_of(self, rank: int | None) -> str:
        """Return the place of a rank in the groups of the job, empty if it is not known."""
        return next((part.place for part in self.parts if part.rank == rank), "")

    def history(self) -> StepNumbers | None:
        """Return the steps since the frame before, over all ranks; None if there are none."""
        return merge_steps([part.history for part in self.parts if part.history is not None])

    def idle_layers(self) -> tuple[BoolArray, BoolArray]:
        """Return (layers,) which absent layers are frozen, and which are unused, as ranks say."""
        return idle_layers(self.parts, self.present)

    def column(self, name: str) -> FloatArray:
        """Return (layers,) one of `FRAME_COLUMNS`, NaN where not measured."""
        values: FloatArray = self.columns[ROW_OF[name]]
        return values

    def let_records_go(self) -> Self:
        """Drop the records, once all rules have looked at them: those of many ranks are large."""
        # In place: a copy of all the rest would take longer than most rules.
        object.__setattr__(self, "parts", ())
        object.__setattr__(self, "disagreement", None)
        return self


@dataclass(frozen=True, slots=True)
class LateFrame(Frame):
    """One record that came after its step was closed, as a frame of its own.

    It is no part of the window. What is non-finite in it matters all the same.
    """
