"""The window: the last closed frames of an attempt, in one array that is a circular buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.frames.frame import FIRST_SAVED_COLUMNS, Frame
from gradwatch_server.core.frames.rows import FRAME_COLUMNS, ROW_OF
from gradwatch_wire.columns import L2

WINDOW_STEPS: Final = 512

_FIRST_ROWS: Final = 32

CHUNK_ROWS: Final = 8
"""Rows that are saved together: one frame more costs so many rows to write at most."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The rows of a window's buffer from `number * CHUNK_ROWS` on, as far as they are written.

    Args:
        number: Which of them, from 0.
        steps: (6, rows), those of `Series`.
        columns: (rows, layers) of each column that is kept.
    """

    number: int
    steps: FloatArray
    columns: Sequence[FloatArray]


@dataclass(frozen=True, slots=True)
class Series:
    """Numbers per step over the window, oldest first, (steps,) each."""

    steps: IndexArray
    total_norm: FloatArray  # NaN where it was, or is not known
    known: BoolArray  # whether the total norm is
    score: FloatArray  # NaN where no layer is known
    coverage: FloatArray
    loss: FloatArray  # NaN where no rank gave one


class Window:
    """The last *steps* frames: values of (steps, columns, layers) and numbers per step."""

    def __init__(self, steps: int = WINDOW_STEPS) -> None:
        self._capacity = steps
        self._kept: list[str] = []  # columns that were ever measured
        self._values = np.full((min(_FIRST_ROWS, steps), 0, 0), np.nan)
        # Rows per step, those of `Series`. A float64 keeps every step exact.
        self._steps = np.zeros((6, steps))
        self._count = 0
        self._absent: set[int] = set()  # chunks
        self._restored = 0  # frames at the time of the save that they are from

    def __len__(self) -> int:
        """Number of frames in the window."""
        return min(self._count, self._capacity)

    def add(self, frame: Frame, score: float) -> None:
        """Write a frame over the oldest one."""
        at = self._count % self._capacity
        layers = frame.columns.shape[1]
        kept = tuple(self._kept)
        if frame.measured != kept:
            self._kept += [name for name in frame.measured if name not in self._kept]
            kept = tuple(self._kept)
        self._fit(at + 1, layers)
        own = self._values[at]
        own[:, :layers] = frame.columns[_rows_of(kept)]
        if layers < own.shape[1]:
            own[:, layers:] = np.nan
        loss = np.nan if frame.loss is None else frame.loss
        known = frame.total_norm is not None
        norm = frame.total_norm if known else np.nan
        self._steps[:, at] = (frame.step, norm, known, score, frame.coverage, loss)
        self._count += 1

    def before(self, layer: int, most: int) -> tuple[tuple[int, float], ...]:
        """Return `(step, L2 norm)` of a layer in those of the last *most* frames that had it."""
        if L2 not in self._kept or layer >= self._values.shape[2]:
            return ()
        order = self._order()[-most:]
        values = self._values[order, self._kept.index(L2), layer]
        had = ~np.isnan(values)
        steps = self._steps[0, order[had]].astype(np.int64)
        return tuple(zip(steps.tolist(), values[had].tolist(), strict=True))

    def recent(self, layers: IndexArray, most: int) -> FloatArray:
        """Return (steps, layers) L2 norms of the last *most* frames, NaN where absent."""
        order = self._order()[-most:]
        known = layers < self._values.shape[2]
        norms = np.full((len(order), len(layers)), np.nan)
        if L2 in self._kept and known.any():
            column = self._values[:, self._kept.index(L2)]
            norms[:, known] = column[np.ix_(order, layers[known])]
        return norms

    def series(self) -> Series:
        """Return a copy of the numbers per step."""
        rows = self._steps[:, self._order()]
        rows.flags.writeable = False
        steps, total_norm, known, score, coverage, loss = rows
        return Series(steps.astype(np.int64), total_norm, known > 0.0, score, coverage, loss)

    @property
    def capacity(self) -> int:
        """How many frames it holds at most."""
        return self._capacity

    @property
    def num_added(self) -> int:
        """How many frames were ever added."""
        return self._count

    def state_dict(self) -> dict[str, Any]:
        """Return plain data of all but the rows, which `chunk` gives."""
        return {
            "capacity": self._capacity,
            "count": self._count,
            "column_names": FRAME_COLUMNS,
            "kept": [FRAME_COLUMNS.index(name) for name in self._kept],
            "layers": self._values.shape[2],
        }

    def changed(self, since: int) -> list[int]:
        """Return the numbers of the chunks with frames added since *since* had been, in order."""
        first = max(since, self._count - self._capacity)
        rows = {row % self._capacity // CHUNK_ROWS for row in range(first, self._count)}
        return sorted(rows)

    def chunk(self, number: int) -> Chunk:
        """Return a chunk that is not absent. The arrays are views."""
        rows = slice(number * CHUNK_ROWS, min((number + 1) * CHUNK_ROWS, len(self)))
        return Chunk(number, self._steps[:, rows], list(self._values[rows].swapaxes(0, 1)))

    @classmethod
    def from_state_dict(
        cls, state: Mapping[str, Any], steps: Iterable[tuple[int, FloatArray]]
    ) -> Self:
        """Return the window that was saved, all columns of it absent as yet.

        Args:
            state: What `state_dict` returned.
            steps: Number and `steps` of all its chunks.

        Raises:
            ValueError: If a chunk is missing or does not fit.
        """
        made = cls(state["capacity"])
        made._count = made._restored = state["count"]
        names = state.get("column_names", FIRST_SAVED_COLUMNS)
        made._kept = [names[row] for row in state["kept"]]
        num_chunks = -(-len(made) // CHUNK_ROWS)
        rows = min(max(_FIRST_ROWS, num_chunks * CHUNK_ROWS), state["capacity"])
        made._values = np.zeros((rows, len(made._kept), state["layers"]))
        made._restore_steps(steps, num_chunks)
        return made

    def _restore_steps(self, steps: Iterable[tuple[int, FloatArray]], num_chunks: int) -> None:
        found = []
        for number, own in steps:
            first = number * CHUNK_ROWS
            self._steps[:, first : min(first + CHUNK_ROWS, len(self))] = own
            found.append(number)
        if sorted(found) != list(range(num_chunks)):
            msg = f"chunks {found} of a window of {len(self)} frames"
            raise ValueError(msg)
        self._absent = set(found)

    def absent(self) -> list[int]:
        """Return the chunks whose columns are yet to be filled in, those of new frames first.

        Nothing may ask for the values of these frames before.
        """
        newest = (self._restored - 1) % self._capacity // CHUNK_ROWS
        num_chunks = -(-self._capacity // CHUNK_ROWS)
        return sorted(self._absent, key=lambda number: (newest - number) % num_chunks)

    def fill(self, number: int, columns: Sequence[FloatArray] = ()) -> None:
        """Fill in a chunk that was absent: (rows, layers) each; without columns there is nothing.

        Raises:
            ValueError: If it does not fit.
        """
        first = number * CHUNK_ROWS
        saved = min(self._restored, self._capacity)
        rows = np.arange(first, min(first + CHUNK_ROWS, saved))
        # Those that newer frames were written over meanwhile stay.
        own = (rows - self._restored) % self._capacity >= self._count - self._restored
        block = np.full((int(own.sum()), *self._values.shape[1:]), np.nan)
        for column, values in enumerate(columns):
            if len(values) != len(rows):
                msg = f"{len(values)} rows of the {len(rows)} of chunk {number}"
                raise ValueError(msg)
            block[:, column, : values.shape[1]] = values[own]
        self._values[rows[own]] = block
        self._absent.discard(number)

    def resized(self, steps: int) -> Window:
        """Return the same frames, as far as there is room, in a buffer of another size."""
        made = Window(steps)
        order = self._order()[-steps:]
        made._count, made._kept = len(order), self._kept
        made._values = np.full(
            (max(len(order), made._values.shape[0]), *self._values.shape[1:]), np.nan
        )
        made._values[: len(order)] = self._values[order]
        made._steps[:, : len(order)] = self._steps[:, order]
        return made

    def _order(self) -> IndexArray:
        count = len(self)
        first = self._count - count
        return (np.arange(first, first + count) % self._capacity).astype(np.int64)

    def _fit(self, rows: int, layers: int) -> None:
        """Grow to *rows* by doubling, to the columns kept, and to *layers*."""
        have_rows, have_columns, have_layers = self._values.shape
        if rows <= have_rows and layers <= have_layers and len(self._kept) == have_columns:
            return
        new_rows = have_rows if rows <= have_rows else min(2 * have_rows, self._capacity)
        grown = np.full((new_rows, len(self._kept), max(layers, have_layers)), np.nan)
        grown[:have_rows, :have_columns, :have_layers] = self._values
        self._values = grown


@lru_cache(maxsize=256)
def _rows_of(columns: tuple[str, ...]) -> slice | list[int]:
    """Return the rows of these columns in a frame: where they lie side by side, without a copy."""
    rows = [ROW_OF[name] for name in columns]
    first = rows[0] if rows else 0
    return slice(first, first + len(rows)) if rows == [*range(first, first + len(rows))] else rows
