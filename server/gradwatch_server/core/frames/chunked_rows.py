"""The rows of a window in chunks, each of which may be away: saved, and not in memory."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

import numpy as np

from gradwatch_server.core.arrays import BoolArray, FloatArray, IndexArray

CHUNK_ROWS: Final = 8
"""Rows that are saved together: one frame more costs so many rows to write at most."""

NEWEST_CHUNKS: Final = 2
"""Chunks that come back for good once they are looked at: each alert tells of the newest frames."""

OWN_PAGES_BYTES: Final = 16 << 10
"""A chunk as large as this has pages of its own, which the system gets back when it is let go."""

Source: TypeAlias = Callable[[int], Sequence[FloatArray] | None]
"""Gives a chunk that is away by its number: (rows, layers) of each column, as they were when it was
saved; nothing if that is damaged, None if it cannot be read just now."""


class ChunkedRows:
    """Rows of (columns, layers) that are written in a circle, and read wherever they are.

    What is away is read anew by each who asks, which changes no value of what he finds.

    Attributes:
        count: How many rows were ever written.
        num_columns: The most columns that a row had.
        num_layers: The most layers that one had.
        num_bytes: What is in memory.
        source: Has what is away.
    """

    def __init__(self, capacity: int) -> None:
        self.count = self.num_columns = self.num_layers = self.num_bytes = 0
        self.source: Source | None = None
        self._capacity = capacity
        self._num_chunks = -(-capacity // CHUNK_ROWS)
        self._chunks: dict[int, FloatArray] = {}  # (rows, columns, layers) each
        self._away: dict[int, int] = {}  # those with rows that are: how many were written then

    def __len__(self) -> int:
        """How many rows there are."""
        return min(self.count, self._capacity)

    def write(self, values: FloatArray, num_columns: int) -> None:
        """Write (columns, layers) over the oldest row; with *num_columns* there are so many."""
        number, row = divmod(self.count % self._capacity, CHUNK_ROWS)
        self.num_columns = max(self.num_columns, num_columns)
        self.num_layers = max(self.num_layers, values.shape[1])
        own = self._fitted(number)[row]
        own[:] = np.nan
        own[: values.shape[0], : values.shape[1]] = values
        self.count += 1
        if number in self._away and not self._kept(number)[1].any():
            del self._away[number]

    def read(self, rows: IndexArray, column: int, layers: IndexArray) -> FloatArray:
        """Return (rows, layers) of a column, NaN where there is none."""
        found = np.full((len(rows), len(layers)), np.nan)
        numbers, places = rows // CHUNK_ROWS, rows % CHUNK_ROWS
        for number in dict.fromkeys(numbers.tolist()):
            values = self._column(number, column)
            own, known = numbers == number, layers < values.shape[1]
            found[np.ix_(own, known)] = values[np.ix_(places[own], layers[known])]
        return found

    def row(self, row: int) -> FloatArray:
        """Return (columns, layers) of a row that is in memory."""
        number, place = divmod(row, CHUNK_ROWS)
        values: FloatArray = self._fitted(number)[place]
        return values

    def chunk(self, number: int) -> list[FloatArray]:
        """Return (rows, layers) of each column of a chunk that is in memory."""
        rows = min(CHUNK_ROWS, len(self) - number * CHUNK_ROWS)
        return list(self._fitted(number)[:rows].swapaxes(0, 1))

    def changed(self, since: int) -> list[int]:
        """Return the numbers of the chunks with rows written since *since* had been, in order."""
        first = max(since, self.count - self._capacity)
        return sorted({row % self._capacity // CHUNK_ROWS for row in range(first, self.count)})

    def restore(self, count: int, num_columns: int, num_layers: int) -> None:
        """Take over what was saved when there were *count* rows, all of it away."""
        self.count, self.num_columns, self.num_layers = count, num_columns, num_layers
        self._away = dict.fromkeys(range(-(-len(self) // CHUNK_ROWS)), count)

    def away(self) -> list[int]:
        """Return the chunks with rows that are away, the newest first."""
        return sorted(self._away, key=self._age)

    def releasable(self, saved: int) -> list[int]:
        """Return the chunks that are as they were saved with *saved* rows, the oldest first."""
        as_saved = self._chunks.keys() - self._away.keys() - set(self.changed(saved))
        return sorted(as_saved, key=self._age, reverse=True)

    def release(self, numbers: Iterable[int]) -> None:
        """Let chunks leave memory that are `releasable`; the source has them."""
        for number in numbers:
            self.num_bytes -= self._chunks.pop(number).nbytes
            self._away[number] = self.count

    def bytes_of(self, number: int) -> int:
        """Return what a chunk takes in memory; one that is away, if it came back."""
        own = self._chunks.get(number)
        if own is not None:
            return own.nbytes
        return self._size(number) * self.num_columns * self.num_layers * 8

    def is_newest(self, number: int) -> bool:
        """Tell whether a chunk is one of the newest."""
        return self._age(number) < NEWEST_CHUNKS

    def fill(self, number: int, columns: Sequence[FloatArray] = ()) -> None:
        """Fill in a chunk that was away: (rows, layers) each; without columns there is nothing.

        One of which all was written over meanwhile stays as it is.

        Raises:
            ValueError: If it does not fit.
        """
        if number not in self._away:
            return
        rows, kept = self._kept(number)
        for values in columns:
            if len(values) != len(rows):
                msg = f"{len(values)} rows of the {len(rows)} of chunk {number}"
                raise ValueError(msg)
        own = self._fitted(number)
        for column, values in enumerate(columns):
            own[rows[kept] % CHUNK_ROWS, column, : values.shape[1]] = values[kept]
        self._away.pop(number, None)

    def _column(self, number: int, column: int) -> FloatArray:
        """Return (rows, layers) of a column of a chunk, wherever it is."""
        columns = self._read(number) if number in self._away else None
        if columns is not None and (not columns or self.is_newest(number)):
            self.fill(number, columns)
            columns = None
        own = self._chunks.get(number)
        if columns is None:
            has = own is not None and column < own.shape[1]
            return own[:, column] if own is not None and has else np.zeros((CHUNK_ROWS, 0))
        rows, kept = self._kept(number)
        merged = np.full((CHUNK_ROWS, self.num_layers), np.nan)
        if own is not None and column < own.shape[1]:
            merged[: own.shape[0], : own.shape[2]] = own[:, column]
        if column < len(columns):
            values = columns[column]
            merged[rows[kept] % CHUNK_ROWS, : values.shape[1]] = values[kept]
        return merged

    def _read(self, number: int) -> Sequence[FloatArray] | None:
        columns = None if self.source is None else self.source(number)
        num_rows = len(self._kept(number)[0])
        if columns is not None and any(len(values) != num_rows for values in columns):
            return ()
        return columns

    def _kept(self, number: int) -> tuple[IndexArray, BoolArray]:
        """Return the rows that a chunk that is away had, and which of them it still stands for."""
        first, count = number * CHUNK_ROWS, self._away[number]
        rows = np.arange(first, min(first + CHUNK_ROWS, count, self._capacity))
        # Those that newer rows were written over meanwhile stay.
        return rows, (rows - count) % self._capacity >= self.count - count

    def _fitted(self, number: int) -> FloatArray:
        """Return a chunk with room for all columns and layers there are."""
        own = self._chunks.get(number)
        shape = (self._size(number), self.num_columns, self.num_layers)
        if own is not None and own.shape == shape:
            return own
        grown = _without_values(shape)
        if own is not None:
            grown[:, : own.shape[1], : own.shape[2]] = own
            self.num_bytes -= own.nbytes
        self._chunks[number] = grown
        self.num_bytes += grown.nbytes
        return grown

    def _size(self, number: int) -> int:
        return min(CHUNK_ROWS, self._capacity - number * CHUNK_ROWS)

    def _age(self, number: int) -> int:
        newest = (self.count - 1) % self._capacity // CHUNK_ROWS
        return (newest - number) % self._num_chunks


def _without_values(shape: tuple[int, ...]) -> FloatArray:
    """Return an array of NaN.

    Between smaller objects its memory would stay with the process: of 44 MB that were let go the
    system got 11 back.
    """
    size = math.prod(shape) * 8
    if size < OWN_PAGES_BYTES:
        return np.full(shape, np.nan)
    made = np.frombuffer(mmap.mmap(-1, size)).reshape(shape)
    made[:] = np.nan
    return made
