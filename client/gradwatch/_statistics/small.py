"""The path for small tensors on the CPU: a few calls for all of them together.

A call costs more than the numbers of such a tensor. So all of one dtype are put into one flat
tensor, ordered by size, in which those of one size are the rows of a matrix. Sums of its rows are
float32's; a norm between two limits certifies them. Where there are many sizes and few elements,
and for all that is not certified, the flat tensor is summed by segments in float64, in whose range
lies every square of a float32 or shorter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Final, TypeAlias

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

from gradwatch_wire.columns import INFS, L1, L2, LINF, NANS, ZEROS

MAX_ELEMENTS: Final = 4_096
"""Elements of a tensor below which it is cheaper among others than by itself. Summed in float32 as
one row they have an error below 3e-6, measured."""

SMALL_DTYPES: Final = frozenset({torch.float32, torch.bfloat16, torch.float16})

_PIECE_ELEMENTS: Final = 1 << 18
"""Elements that are put together at once: 2 MB in float64, of which there are some at a time."""

_MATRIX_ELEMENTS: Final = 1_024
"""Elements per size from which calls for each size are cheaper than float64."""

_SAFE_PER_ELEMENT: Final = 1e-16
"""A float32 norm above this times sqrt(numel) lost less than 1e-6 to squares that underflow."""

_LEAST_BITS: Final = 1 << 23
"""Bits of the smallest normal float32; what is below the CPU may be set to see as zero."""

_COUNTS: Final = frozenset({NANS, INFS})

_Counts: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Places of tensors that are not finite, (tensors,) int64; their numbers of NaN and of Inf."""


def small_statistics(gradients: Sequence[Tensor], columns: Sequence[str]) -> dict[str, Tensor]:
    """Return each column, (gradients,) float64; see `statistics`.

    Args:
        gradients: Of `SMALL_DTYPES`; of any size, but large ones are copied.
        columns: Which of the wire's `MEASURED_COLUMNS`.

    Raises:
        RuntimeError: If torch refuses the tensors.
    """
    dtypes = set(map(attrgetter("dtype"), gradients))
    if len(dtypes) == 1:
        return _Numbers(columns).of(gradients)
    values = {
        name: torch.zeros(len(gradients), dtype=torch.float64, device="cpu") for name in columns
    }
    for dtype in dtypes:
        places = [place for place, each in enumerate(gradients) if each.dtype is dtype]
        found = _Numbers(columns).of([gradients[place] for place in places])
        for name in columns:
            values[name][places] = found[name]
    return values


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some tensors that are put together.

    Args:
        order: Their places, by size.
        places: The same, (tensors,) int64.
        is_given: Whether that is all of them, as they were given.
        sizes: Elements of each, (tensors,) int64.
        limits: Float32 norm of each above which it is certified, (tensors,) float64.
        groups: Of each size: its tensors' begin and end among these, and the size.
        is_by_size: Whether calls for each size are cheaper than float64 for all.
    """

    order: tuple[int, ...]
    places: Tensor
    is_given: bool
    sizes: Tensor
    limits: Tensor
    groups: tuple[tuple[int, int, int], ...]
    is_by_size: bool


@lru_cache(maxsize=64)
def _plan(sizes: tuple[int, ...]) -> list[_Piece]:
    """Return how to put tensors of these sizes together; those of a model are always the same."""
    if sum(sizes) <= min(_MATRIX_ELEMENTS * len(set(sizes)), _PIECE_ELEMENTS) and all(sizes):
        return [_piece(list(range(len(sizes))), sizes)]  # their order does not matter
    pieces, order, total = [], list[int](), 0
    for place in sorted(range(len(sizes)), key=sizes.__getitem__):
        if order and total + sizes[place] > _PIECE_ELEMENTS:
            pieces.append(_piece(order, sizes))
            order, total = [], 0
        if sizes[place]:
            order.append(place)
            total += sizes[place]
    return [*pieces, _piece(order, sizes)] if order else pieces


def _piece(order: list[int], all_sizes: Sequence[int]) -> _Piece:
    sizes = [all_sizes[place] for place in order]
    groups, begin = [], 0
    for size, same in groupby(sizes):
        end = begin + len(list(same))
        groups.append((begin, end, size))
        begin = end
    lengths = _int_tensor(sizes)
    return _Piece(
        order=tuple(order),
        places=_int_tensor(order),
        is_given=order == list(range(len(all_sizes))),
        sizes=lengths,
        limits=lengths.double().sqrt_() * _SAFE_PER_ELEMENT,
        groups=tuple(groups),
        is_by_size=sum(sizes) > _MATRIX_ELEMENTS * len(groups),
    )


@lru_cache(maxsize=64)
def _zeros(count: int) -> Tensor:
    """Return (count,) float64 that is never written to: nearly always nothing is to be counted."""
    return torch.zeros(count, dtype=torch.float64, device="cpu")


def _int_tensor(numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device="cpu")


class _Numbers:
    """Numbers of tensors of one dtype: rows of a table, and counts of NaN and Inf where they are.

    Args:
        columns: Which of the wire's `MEASURED_COLUMNS`.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._names = [L2, *(name for name in (L1, LINF, ZEROS) if name in columns)]
        self._rows = {name: row for row, name in enumerate(self._names)}
        self._has_counts = bool(_COUNTS.intersection(columns))

    def of(self, gradients: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return each column, (gradients,) float64."""
        pieces = _plan(tuple(map(Tensor.numel, gradients)))
        if len(pieces) == 1 and pieces[0].is_given:
            return self._named(*self._measure(gradients, pieces[0]))
        table = torch.zeros(len(self._names), len(gradients), dtype=torch.float64, device="cpu")
        bad = []
        for piece in pieces:
            found, counts = self._measure([gradients[place] for place in piece.order], piece)
            table.index_copy_(1, piece.places, found)
            bad += [(piece.places[places], nans, infs) for places, nans, infs in counts]
        return self._named(table, bad)

    def _named(self, table: Tensor, bad: Sequence[_Counts]) -> dict[str, Tensor]:
        values = {name: table[row] for name, row in self._rows.items()}
        if self._has_counts:
            values[NANS] = values[INFS] = _zeros(table.shape[1])
        if bad:
            values[NANS], values[INFS] = table.new_zeros(2, table.shape[1])
            for places, nans, infs in bad:
                values[NANS][places], values[INFS][places] = nans, infs
        return {name: values[name] for name in self._columns}

    def _measure(self, tensors: Sequence[Tensor], piece: _Piece) -> tuple[Tensor, list[_Counts]]:
        """Return (names, tensors) float64, and the counts of what is not finite."""
        flat = _flatten_dense_tensors(tensors)
        if not piece.is_by_size:
            return self._by_segment(tensors, flat, piece.sizes)
        found = self._by_size(flat, piece)
        is_safe = found[0].gt(piece.limits).logical_and_(found[0].isfinite())
        if is_safe.all():
            return found, []
        left = is_safe.logical_not_().nonzero().flatten()
        odd = [tensors[place] for place in left.tolist()]
        exact, counts = self._by_segment(odd, _flatten_dense_tensors(odd), piece.sizes[left])
        found.index_copy_(1, left, exact)
        return found, [(left[places], nans, infs) for places, nans, infs in counts]

    def _by_size(self, flat: Tensor, piece: _Piece) -> Tensor:
        """Return (names, tensors) float64 of sums in float32."""
        own = flat.float()
        found = torch.empty(len(self._names), len(piece.order), dtype=torch.float64, device="cpu")
        if len(self._names) > 1:
            own.abs_()
        bits = own.view(torch.int32)
        has_zeros = False
        if ZEROS in self._rows:
            found[self._rows[ZEROS]] = 0.0
            has_zeros = bits.amin().item() < _LEAST_BITS
        stop = 0
        for begin, end, size in piece.groups:
            start, stop = stop, stop + (end - begin) * size
            rows = own[start:stop].view(end - begin, size)
            found[0, begin:end] = torch.linalg.vector_norm(rows, dim=1)
            if L1 in self._rows:
                found[self._rows[L1], begin:end] = rows.sum(1)
            if LINF in self._rows:  # bits of magnitudes are in their order, NaN above all
                most = bits[start:stop].view(end - begin, size).amax(1)
                found[self._rows[LINF], begin:end] = most.view(torch.float32)
            if has_zeros:
                found[self._rows[ZEROS], begin:end] = (rows == 0.0).sum(1)
        return found

    def _by_segment(
        self, tensors: Sequence[Tensor], flat: Tensor, sizes: Tensor
    ) -> tuple[Tensor, list[_Counts]]:
        """Return (names, tensors) float64 of sums in float64, and the counts."""
        wide = flat.double()
        if len(self._names) == 1:
            found = _reduce(wide.square_(), sizes).sqrt_().unsqueeze(0)
        else:
            found = torch.empty(len(self._names), len(sizes), dtype=torch.float64, device="cpu")
            wide.abs_()
            if ZEROS in self._rows:  # before a square may become one
                zeros = (flat.float() == 0.0).double()
                found[self._rows[ZEROS]] = _reduce(zeros, sizes)
            if L1 in self._rows:
                found[self._rows[L1]] = _reduce(wide, sizes)
            if LINF in self._rows:
                found[self._rows[LINF]] = _reduce(wide, sizes, "max")
            found[0] = _reduce(wide.square_(), sizes).sqrt_()
        if not self._has_counts or math.isfinite(found.sum().item()):
            return found, []
        bad = found[0].isfinite().logical_not_().nonzero().flatten()
        if len(bad) < len(sizes):
            flat = _flatten_dense_tensors([tensors[place] for place in bad.tolist()])
            sizes = sizes[bad]
        nans, infs = (_reduce(each.double(), sizes) for each in (flat.isnan(), flat.isinf()))
        return found, [(bad, nans, infs)]


def _reduce(flat: Tensor, sizes: Tensor, how: str = "sum") -> Tensor:
    """Return (tensors,) of one flat tensor that holds the elements of all."""
    return torch.segment_reduce(flat, how, lengths=sizes, unsafe=True)
