"""The window: the last closed frames of an attempt, in one array that is a circular buffer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray
from gradwatch_server.core.frames.chunked_rows import CHUNK_ROWS, ChunkedRows, Source
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.frames.rows import FRAME_COLUMNS, ROW_OF
from gradwatch_wire.columns import L2

WINDOW_STEPS: Final = 512


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
        self._rows = ChunkedRows(steps)
        # Rows per step, those of `Series`. A float64 keeps every step exact.
        self._steps = np.zeros((6, steps))

    def __len__(self) -> int:
        """Number of frames in the window."""
        return len(self._rows)

    def add(self, frame: Frame, score: float) -> None:
        """Write a frame over the oldest one."""
        at = self._rows.count % self._capacity
        kept = tuple(self._kept)
        if frame.measured != kept:
            self._kept += [name for name in frame.measured if name not in self._kept]
            kept = tuple(self._kept)
        self._rows.write(frame.columns[_rows_of(kept)], len(kept))
        loss = np.nan if frame.loss is None else frame.loss
        known = frame.total_norm is not None
        norm = frame.total_norm if known else np.nan
        self._steps[:, at] = (frame.step, norm, known, score, frame.coverage, loss)

    def before(self, layer: int, most: int) -> tuple[tuple[int, float], ...]:
        """Return `(step, L2 norm)` of a layer in those of the last *most* frames that had it."""
        values = self.recent(np.array([layer]), most)[:, 0]
        had = ~np.isnan(values)
        steps = self._steps[0, self._order()[-most:][had]].astype(np.int64)
        return tuple(zip(steps.tolist(), values[had].tolist(), strict=True))

    def recent(self, layers: IndexArray, most: int) -> FloatArray:
        """Return (steps, layers) L2 norms of the last *most* frames, NaN where absent."""
        order = self._order()[-most:]
        if L2 not in self._kept:
            return np.full((len(order), len(layers)), np.nan)
        return self._rows.read(order, self._kept.index(L2), layers)

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
        return self._rows.count

    @property
    def num_bytes(self) -> int:
        """What the columns take in memory."""
        return self._rows.num_bytes

    @property
    def frame_bytes(self) -> int:
        """What the columns of one frame take, bytes."""
        return self._rows.num_columns * self._rows.num_layers * 8

    def state_dict(self) -> dict[str, Any]:
        """Return plain data of all but the rows, which `chunk` gives."""
        return {
            "capacity": self._capacity,
            "count": self._rows.count,
            "kept": [FRAME_COLUMNS.index(name) for name in self._kept],
            "layers": self._rows.num_layers,
        }

    def changed(self, since: int) -> list[int]:
        """Return the numbers of the chunks with frames added since *since* had been, in order."""
        return self._rows.changed(since)

    def chunk(self, number: int) -> Chunk:
        """Return a chunk that is not absent. The arrays are views."""
        rows = slice(number * CHUNK_ROWS, min((number + 1) * CHUNK_ROWS, len(self)))
        return Chunk(number, self._steps[:, rows], self._rows.chunk(number))

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
        made._kept = [FRAME_COLUMNS[row] for row in state["kept"]]
        made._rows.restore(state["count"], len(made._kept), state["layers"])
        made._restore_steps(steps)
        return made

    def _restore_steps(self, steps: Iterable[tuple[int, FloatArray]]) -> None:
        found = []
        for number, own in steps:
            first = number * CHUNK_ROWS
            self._steps[:, first : min(first + CHUNK_ROWS, len(self))] = own
            found.append(number)
        if sorted(found) != sorted(self._rows.away()):
            msg = f"chunks {found} of a window of {len(self)} frames"
            raise ValueError(msg)

    def absent(self) -> list[int]:
        """Return the chunks whose columns are not in memory, those of new frames first.

        What they hold is read from the source where it is asked for.
        """
        return self._rows.away()

    def fill(self, number: int, columns: Sequence[FloatArray] = ()) -> None:
        """Fill in a chunk that was absent: (rows, layers) each; without columns there is nothing.

        Raises:
            ValueError: If it does not fit.
        """
        self._rows.fill(number, columns)

    def bytes_of(self, number: int) -> int:
        """Return what the columns of a chunk take in memory, or would take."""
        return self._rows.bytes_of(number)

    def keep_with(self, source: Source) -> None:
        """Say what has the chunks that are absent."""
        self._rows.source = source

    def releasable(self, saved: int, *, newest: bool) -> list[int]:
        """Return the chunks that may become absent, the oldest first.

        Args:
            saved: How many frames had been added when it was saved last.
            newest: Whether those that alerts tell of may, too.
        """
        found = self._rows.releasable(saved)
        return [number for number in found if newest or not self._rows.is_newest(number)]

    def release(self, numbers: Iterable[int]) -> None:
        """Let the columns of chunks leave memory that are `releasable`. No value changes by it."""
        self._rows.release(numbers)

    def resized(self, steps: int) -> Window:
        """Return the same frames, as far as there is room, in a buffer of another size.

        Nothing may be absent.
        """
        made = Window(steps)
        order = self._order()[-steps:]
        made._kept = self._kept
        for row in order.tolist():
            made._rows.write(self._rows.row(row), len(self._kept))
        made._steps[:, : len(order)] = self._steps[:, order]
        return made

    def _order(self) -> IndexArray:
        count, newest = len(self), self._rows.count
        return (np.arange(newest - count, newest) % self._capacity).astype(np.int64)


@lru_cache(maxsize=256)
def _rows_of(columns: tuple[str, ...]) -> slice | list[int]:
    """Return the rows of these columns in a frame: where they lie side by side, without a copy."""
    rows = [ROW_OF[name] for name in columns]
    first = rows[0] if rows else 0
    return slice(first, first + len(rows)) if rows == [*range(first, first + len(rows))] else rows
