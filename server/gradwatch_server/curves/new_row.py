"""Rows on their way into a block: what a closed frame, or a frame of gains, has for the curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.frames.closed_frame import ClosedFrame
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.frames.gains import GainFrame
from gradwatch_server.core.frames.rows import ROW_OF
from gradwatch_server.curves.columns import RUN_COLUMNS, run_numbers
from gradwatch_server.curves.group_numbers import GroupNumbers
from gradwatch_server.curves.items import (
    SPREAD_TABLE,
    USUAL_TABLE,
    ItemKind,
    ItemNames,
    ItemNumbers,
    table_of,
)
from gradwatch_server.curves.rows import Rows
from gradwatch_wire.columns import L2, NOT_SEEN


@dataclass(frozen=True, slots=True, eq=False)
class NewRow:
    """Numbers of one step.

    Args:
        time_ns: When its last record came in, nanoseconds since the epoch.
        numbers: Values of `RUN_COLUMNS`, None where one is not known; none of gains.
        frame: Source of the layers' values; None of gains.
        l2: (layers,) their L2 norms, non-finite where any collection was; None of gains.
    """

    epoch: int
    step: int
    time_ns: int
    skipped: bool = False
    numbers: Sequence[float | None] = ()
    frame: Frame | None = None
    l2: FloatArray | None = None
    items: Mapping[str, ItemNumbers] = field(default_factory=dict)

    @property
    def num_layers(self) -> int:
        return 0 if self.frame is None else len(self.frame.present)

    @property
    def measured(self) -> tuple[str, ...]:
        return () if self.frame is None else self.frame.measured


def row_of_frame(closed: ClosedFrame, names: ItemNames, groups: GroupNumbers) -> NewRow:
    """Return the row of a closed frame, which still has its records."""
    frame = closed.frame
    l2 = norms_of(frame)
    is_usual_known = ~np.isnan(closed.usual)
    return NewRow(
        epoch=closed.epoch,
        step=frame.step,
        time_ns=frame.received_ns,
        skipped=closed.skipped,
        numbers=run_numbers(closed),
        frame=frame,
        l2=l2,
        items={
            USUAL_TABLE: ItemNumbers(None, closed.usual, is_usual_known),
            SPREAD_TABLE: ItemNumbers(None, closed.spread, is_usual_known),
            **dict((*groups.numbers(closed, l2, names), *_of_modules(frame, names))),
        },
    )


def row_of_gains(gains: GainFrame, epoch: int, names: ItemNames) -> NewRow:
    places = names.places(ItemKind.BLOCK, gains.blocks)
    items = {
        table_of(ItemKind.BLOCK, "output_norm"): ItemNumbers.of(places, gains.norms),
        table_of(ItemKind.BLOCK, "gain"): ItemNumbers.of(places[: len(gains.gains)], gains.gains),
    }
    return NewRow(epoch, gains.step, gains.received_ns, items=items)


def rows_of_history(closed: ClosedFrame) -> Rows | None:
    """Return the rows of the steps since the frame before, None if there are none.

    Their times lie evenly between those of the two frames.
    """
    history = closed.frame.history()
    if history is None or not len(history.steps):
        return None
    num_rows, until_ns = len(history.steps), closed.frame.received_ns
    after_ns = until_ns if closed.after_ns is None else min(closed.after_ns, until_ns)
    shares = np.arange(1, num_rows + 1) / (num_rows + 1)
    values = np.full((num_rows, len(RUN_COLUMNS)), np.nan)
    known = np.zeros(values.shape, dtype=np.bool_)
    for name, numbers, is_known in (
        ("loss", history.loss, history.has_loss),
        ("lr", history.lr, ~np.isnan(history.lr)),
        ("step_time", history.step_time_s, ~np.isnan(history.step_time_s)),
        ("skipped", history.skipped, np.ones(num_rows, dtype=np.bool_)),
    ):
        place = RUN_COLUMNS.index(name)
        values[:, place], known[:, place] = numbers, is_known
    times_ns = after_ns + ((until_ns - after_ns) * shares).astype(np.int64)
    return Rows(history.steps, times_ns, history.skipped, values, known)


def norms_of(frame: Frame) -> FloatArray:
    """Return (layers,) L2 norms, non-finite where any collection that a record covers was."""
    l2: FloatArray = frame.columns[ROW_OF[L2]]
    if not np.count_nonzero(frame.nonfinite):
        return l2
    hidden = frame.nonfinite & np.isfinite(l2)
    return np.where(hidden, np.where(np.isinf(frame.l2_max), np.inf, np.nan), l2)


def _of_modules(frame: Frame, names: ItemNames) -> Iterator[tuple[str, ItemNumbers]]:
    """Yield the largest magnitude in the outputs of each module over the ranks, NaN first."""
    numbers: ItemNumbers | None = None
    for part in frame.parts:
        if part.activations is None:
            continue
        places = names.places(ItemKind.MODULE, part.layout.modules)
        has_place = places >= 0
        values = part.activations[has_place]
        known = values != NOT_SEEN
        new = ItemNumbers(places[has_place], np.where(known, values, np.nan), known)
        numbers = new if numbers is None else _larger(numbers, new)
    if numbers is not None:
        yield table_of(ItemKind.MODULE, "activation"), numbers


def _larger(one: ItemNumbers, other: ItemNumbers) -> ItemNumbers:
    size = max(one.width, other.width)
    values, known = np.full(size, -np.inf), np.zeros(size, dtype=np.bool_)
    for table in (one, other):
        places = (np.arange(table.width) if table.places is None else table.places)[table.known]
        values[places] = np.maximum(values[places], table.values[table.known])
        known[places] = True
    return ItemNumbers(None, np.where(known, values, np.nan), known)
