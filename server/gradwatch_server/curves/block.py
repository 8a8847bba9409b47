"""A block of rows that is open: written by one thread, read by any.

Rows are only added, never changed, and a block that has to be larger is another object. So a reader
that has a block and its number of rows sees what was there, whatever the writer does meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, cast

import numpy as np
import numpy.typing as npt

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray, Item
from gradwatch_server.core.frames.rows import ROW_OF
from gradwatch_server.curves.columns import RUN_COLUMNS, RUN_TABLE
from gradwatch_server.curves.encoding import narrowed
from gradwatch_server.curves.items import ITEM_TABLES, ROUNDED_BITS, rounded
from gradwatch_server.curves.new_row import NewRow
from gradwatch_server.curves.rows import Rows
from gradwatch_wire.columns import L2, NONFINITE_COUNTS, UPDATE_COLUMNS

MAX_ROWS: Final = 64
"""Rows of a block at most."""

MAX_BYTES: Final = 4 << 20
"""A block of very many layers is closed at this size, though never before `MIN_ROWS`."""

MIN_ROWS: Final = 4

FIRST_ROWS: Final = 4
"""Rows that the first block of an attempt has room for at first."""


class Block:
    """Rows of one epoch, (capacity, ...) of which the first `count` are there.

    Args:
        number: Which block of the attempt it is, from 0.
    """

    def __init__(
        self, number: int, epoch: int, capacity: int, columns: tuple[str, ...], num_layers: int
    ) -> None:
        self.number, self.epoch, self.columns = number, epoch, columns
        self.count = 0
        self.steps = np.zeros(capacity, dtype=np.int64)
        self.times_ns = np.zeros(capacity, dtype=np.int64)
        self.offsets = np.zeros(capacity, dtype=np.int64)
        self.skipped = np.zeros(capacity, dtype=np.bool_)
        self.run = np.full((capacity, len(RUN_COLUMNS)), np.nan)
        self.run_known = np.zeros((capacity, len(RUN_COLUMNS)), dtype=np.bool_)
        self.present = np.zeros((capacity, num_layers), dtype=np.bool_)
        self.values = np.full((capacity, len(columns), num_layers), np.nan)
        self.items: dict[str, tuple[FloatArray, BoolArray]] = {}
        """Table of other items to (capacity, items) numbers, and whether there is one."""

    @property
    def capacity(self) -> int:
        return len(self.steps)

    @property
    def num_bytes(self) -> int:
        items = sum(values.nbytes + known.nbytes for values, known in self.items.values())
        return self.values.nbytes + self.present.nbytes + self.run.nbytes + items + 1_024

    @property
    def num_layers(self) -> int:
        return int(self.present.shape[1])

    @property
    def is_full(self) -> bool:
        """Fullness: true if the next row belongs into another block."""
        per_row = 8 * max(len(self.columns), 1) * max(self.num_layers, 1)
        per_row += sum(9 * self.num_items(table) for table in self.items)
        limit = min(MAX_ROWS, max(MIN_ROWS, MAX_BYTES // per_row))
        return self.count >= limit

    def num_items(self, table: str) -> int:
        """Return how many items it has of a table of items that are no layers."""
        return int(self.items[table][0].shape[1]) if table in self.items else 0

    def fits(self, row: NewRow) -> bool:
        """Tell whether a row can be added without growing."""
        return (
            self.count < self.capacity
            and row.num_layers <= self.num_layers
            and (row.measured == self.columns or set(row.measured) <= set(self.columns))
            and all(item.width <= self.num_items(table) for table, item in row.items.items())
        )

    def grown(self, row: NewRow) -> Block:
        """Return a copy that a row fits into."""
        columns = (
            *self.columns,
            *(column for column in row.measured if column not in self.columns),
        )
        capacity = self.capacity
        if self.count == capacity:
            capacity = min(2 * capacity, MAX_ROWS)
        layers = max(self.num_layers, row.num_layers)
        made = Block(self.number, self.epoch, capacity, columns, layers)
        rows = slice(self.count)
        for name in ("steps", "times_ns", "offsets", "skipped", "run", "run_known"):
            getattr(made, name)[rows] = getattr(self, name)[rows]
        made.present[rows, : self.num_layers] = self.present[rows]
        made.values[rows, : len(self.columns), : self.num_layers] = self.values[rows]
        made.count = self.count
        for table in {**self.items, **row.items}:
            needed = row.items[table].width if table in row.items else 0
            made.add_table(table, max(self.num_items(table), needed))
            for array, before in zip(made.items[table], self.items.get(table, ()), strict=False):
                array[rows, : before.shape[1]] = before[rows]
        return made

    def add_table(self, table: str, num_items: int) -> None:
        """Make room for a table of other items, of which nothing is known yet."""
        shape = self.capacity, num_items
        self.items[table] = np.full(shape, np.nan), np.zeros(shape, dtype=np.bool_)

    def tables(self) -> Iterator[tuple[str, Rows]]:
        """Yield all tables as they are stored: norms in float32 if that holds them."""
        names = [RUN_TABLE]
        if self.num_layers and self.columns:
            names += dict.fromkeys((*self.columns, *NONFINITE_COUNTS))
        for name in (*names, *self.items):
            rows = self.rows(name)
            values = rows.values if name == RUN_TABLE else narrowed(rows.values)
            yield name, replace(rows, values=cast(FloatArray, values))

    @classmethod
    def begun(cls, number: int, row: NewRow, capacity: int = FIRST_ROWS) -> Block:
        """Return an empty block that a row fits into, with room for some rows."""
        made = cls(number, row.epoch, capacity, row.measured, row.num_layers)
        for table, numbers in row.items.items():
            made.add_table(table, numbers.width)
        return made

    def add(self, new: NewRow, offset: int) -> None:
        """Add a row that fits.

        Args:
            offset: Place in the log of the entry by which its step closed.
        """
        row = self.count
        self.steps[row], self.times_ns[row] = new.step, new.time_ns
        self.offsets[row], self.skipped[row] = offset, new.skipped
        self._add_numbers(new, row)
        self._add_layers(new, row)
        for table, numbers in new.items.items():
            values, known = self.items[table]
            places = slice(numbers.width) if numbers.places is None else numbers.places
            values[row, places], known[row, places] = numbers.values, numbers.known
        self.count += 1  # last: who reads beside us takes the rows up to here

    def extend(self, rows: Rows, offset: int) -> None:
        """Add rows of numbers of the run, for which there is room; see `add`."""
        span = slice(self.count, self.count + len(rows.steps))
        self.steps[span], self.times_ns[span] = rows.steps, rows.times_ns
        self.offsets[span], self.skipped[span] = offset, rows.skipped
        self.run[span], self.run_known[span] = rows.values, rows.known
        self.count += len(rows.steps)

    def _add_numbers(self, new: NewRow, row: int) -> None:
        if new.numbers:
            self.run_known[row] = [value is not None for value in new.numbers]
            self.run[row] = [np.nan if value is None else value for value in new.numbers]

    def _add_layers(self, new: NewRow, row: int) -> None:
        frame, layers = new.frame, new.num_layers
        if frame is None:
            return
        self.present[row, :layers] = frame.present
        for place, name in enumerate(self.columns):
            self.values[row, place, :layers] = frame.columns[ROW_OF[name]]
        if L2 in self.columns:
            self.values[row, self.columns.index(L2), :layers] = new.l2

    def rows(self, table: str, items: IndexArray | None = None, count: int | None = None) -> Rows:
        """Return the first *count* rows of some items of a table, all without.

        Args:
            table: `RUN_TABLE`, one of `ITEM_TABLES`, or a column of the layers.
            items: Which items; those that the block does not have are not known.
            count: How many rows there were when the reader looked.
        """
        span = slice(self.count if count is None else count)
        if table == RUN_TABLE:
            values, known = self.run[span], self.run_known[span]
        elif table in ITEM_TABLES:
            values, known = self._items(table, span)
        else:
            values, known = self._layers(table, span)
        if items is not None:
            values, known = _picked(values, items, np.nan), _picked(known, items, fill=False)
        return Rows(self.steps[span], self.times_ns[span], self.skipped[span], values, known)

    def _items(self, table: str, span: slice) -> tuple[FloatArray, BoolArray]:
        if table not in self.items:
            none = np.zeros((len(self.steps[span]), 0))
            return none, none.astype(np.bool_)
        values, known = self.items[table]
        num_bits = ROUNDED_BITS.get(table)
        numbers = values[span] if num_bits is None else rounded(values[span], num_bits)
        return numbers, known[span]

    def _layers(self, column: str, span: slice) -> tuple[FloatArray, BoolArray]:
        present, l2 = self.present[span], self._values(L2, span)
        if column == L2:
            return l2, present
        values = self._values(column, span)
        if column not in self.columns and column not in NONFINITE_COUNTS:
            return values, np.zeros_like(present)  # as it is where it is stored: no such table
        unknown = np.isnan(values)
        if not unknown.any():
            return values, present
        if column in NONFINITE_COUNTS:  # sent only where the norm shows that there are some
            values = np.where(unknown & np.isfinite(l2), 0.0, values)
            unknown = np.isnan(values)
        if column in UPDATE_COLUMNS:
            return values, present & ~unknown
        # Beside a norm that is NaN a NaN is a value, else nothing was measured.
        return values, present & (~unknown | np.isnan(l2))

    def _values(self, column: str, span: slice) -> FloatArray:
        if column not in self.columns:
            return np.full(self.present[span].shape, np.nan)
        values: FloatArray = self.values[span, self.columns.index(column)]
        return values


def _picked(values: npt.NDArray[Item], items: IndexArray, fill: float) -> npt.NDArray[Item]:
    """Return (rows, items), *fill* where there is no such item."""
    made = np.full((len(values), len(items)), fill, dtype=values.dtype)
    is_there = items < values.shape[1]
    made[:, is_there] = values[:, items[is_there]]
    return made
