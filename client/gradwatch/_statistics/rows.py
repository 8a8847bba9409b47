"""The path for CPU tensors: float32 sums over short rows, put together in float64.

A plain float32 norm overflows from 1.8e19 on, loses what is below 1e-19, and drifts by up to 2 %
over 40 million elements; float64 for all takes 3 to 9 times as long. So every tensor is cut into
rows, a few vectorised calls reduce many rows while they lie in the cache, and the rows of each
tensor are put together in float64. A call costs more than the numbers of a small tensor: such
tensors are copied into one block of rows first, padded with zeros. The few tensors whose sums left
the range of float32 are measured again in float64, in whose range lies every square of a float32.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Final

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors

from gradwatch._statistics.gradients import SMALL_DTYPES, exact_norms, flats
from gradwatch._statistics.segments import MAX_SEGMENTS, are_small, norms_of
from gradwatch_wire.columns import INFS, L1, L2, LINF, NANS, ZEROS

WIDTH: Final = 1024
"""Elements summed in float32 before float64 takes over: error below 1e-6, measured."""

NARROW: Final = 64
"""Elements of a row where there are many tensors of less than half a `WIDTH`."""

MIN_NARROW: Final = 32
"""Tensors from which rows of their own are cheaper than padding."""

BLOCK_ROWS: Final = 256
"""Rows that are reduced at once: their magnitudes are 1 MB of float32, which stay in a core's own
cache from call to call; with fewer the calls themselves begin to count."""

NORM_ROWS: Final = 4096
"""Rows reduced at once where there is a single pass: the cache does not matter, fewer calls do."""

DIRECT_ROWS: Final = 32
"""From this many rows on a tensor is reduced where it lies. Below it all together are summed in
float64 at once: that is exact, and takes no longer."""

MAX_TENSORS: Final = 4_096
"""Tensors that are measured at once, and whose places in a block are kept for the next step."""

_MAX_ROWS: Final = 32_768
"""Rows whose sums wait to be added up by tensor: 3 MB with their copies."""

_SAFE_PER_ELEMENT: Final = {torch.float32: 1e-16, torch.float64: 1e-150}
"""A norm above this times sqrt(numel) lost less than 1e-6 to squares that underflow."""

_TABLE: Final = (L2, L1, ZEROS, NANS, INFS, LINF)
"""Rows of a table of numbers: what is added up comes first."""

_L2, _L1, _ZEROS, _NANS, _INFS, _LINF = range(len(_TABLE))

FREE_COLUMNS: Final = (L2, NANS, INFS)
"""Columns that cost nothing beside the norm: NaN and Inf are counted where the norm shows some."""

_INTEGER: Final = {torch.float32: torch.int32, torch.float64: torch.int64}
_INF_BITS: Final = {torch.float32: 0x7F80_0000, torch.float64: 0x7FF0_0000_0000_0000}
_LEAST_BITS: Final = {torch.float32: 1 << 23, torch.float64: 1 << 52}
"""Bits of the smallest normal number; what is below the CPU may be set to see as zero."""


def row_statistics(gradients: Sequence[Tensor], columns: Sequence[str]) -> dict[str, Tensor]:
    """Return each column as (gradients,) float64; see `statistics`.

    Raises:
        RuntimeError: If torch refuses the tensors.
    """
    has_magnitudes = not {L1, LINF, ZEROS}.isdisjoint(columns)
    if len(gradients) <= MAX_SEGMENTS and set(columns) <= set(FREE_COLUMNS):
        norms = _norms_of_few(gradients)
        if norms is not None:
            return {name: norms if name == L2 else torch.zeros_like(norms) for name in columns}
    tables = [
        _table(gradients[begin : begin + MAX_TENSORS], has_magnitudes)
        for begin in range(0, len(gradients), MAX_TENSORS)
    ]
    table = tables[0] if len(tables) == 1 else torch.cat(tables, 1)
    values = dict(zip(_TABLE, table.unbind(), strict=True))
    return {name: values[name] for name in columns}


def _norms_of_few(gradients: Sequence[Tensor]) -> Tensor | None:
    """Return (gradients,) norms of small ones that are finite; None where another way is due."""
    sizes = tuple([each.numel() for each in gradients])
    dtypes = set(map(attrgetter("dtype"), gradients))
    if len(dtypes) > 1 or not dtypes <= SMALL_DTYPES or not are_small(sizes):
        return None
    norms = norms_of(_flatten_dense_tensors(gradients), sizes)
    return norms if math.isfinite(norms.sum().item()) else None


def _table(gradients: Sequence[Tensor], has_magnitudes: bool) -> Tensor:
    """Return (rows of `_TABLE`, gradients) float64; l2 and the counts alone without magnitudes."""
    dtypes = set(map(attrgetter("dtype"), gradients))
    if torch.float64 not in dtypes:
        return _measured(gradients, torch.float32, has_magnitudes)
    if len(dtypes) == 1:
        return _measured(gradients, torch.float64, has_magnitudes)
    table = _zeros(len(gradients))
    for dtype in _INTEGER:
        is_wide = dtype is torch.float64
        places = [i for i, each in enumerate(gradients) if (each.dtype is torch.float64) == is_wide]
        own = [gradients[place] for place in places]
        table[:, places] = _measured(own, dtype, has_magnitudes)
    return table


def _measured(gradients: Sequence[Tensor], dtype: torch.dtype, has_magnitudes: bool) -> Tensor:
    """Return the table of gradients that are reduced in one dtype."""
    plan = _memory.plan_of(gradients, dtype)
    own = torch.float64 if plan.is_exact else dtype
    table = _Reduction(own, has_magnitudes).run(gradients, plan)
    odd = _uncertain(table, plan.limits, has_magnitudes)
    if not odd:
        return table
    if dtype is torch.float64:
        for place in odd:
            for name, norm in exact_norms(gradients[place]).items():
                table[_TABLE.index(name), place] = norm
        return table
    is_all = len(odd) == len(gradients)
    again = gradients if is_all else [gradients[place] for place in odd]
    plan = plan if is_all else _memory.plan_of(again, dtype)
    exact = _Reduction(torch.float64, has_magnitudes).run(again, plan)
    if is_all:
        return exact
    table[:, odd] = exact
    return table


def _uncertain(table: Tensor, limits: Tensor, has_magnitudes: bool) -> list[int]:
    """Return the places of finite gradients whose norms are not certified."""
    norms = table[_L2]
    if math.isfinite(table[:2].sum().item()) and norms.sub(limits).amin().item() > 0.0:
        return []
    is_safe = norms.isfinite() & (norms > limits)
    if has_magnitudes:
        is_safe = (is_safe | (table[_LINF] == 0.0)) & table[_L1].isfinite()
    is_safe |= (table[_NANS] > 0.0) | (table[_INFS] > 0.0)
    found: list[int] = is_safe.logical_not_().nonzero().flatten().tolist()
    return found


@dataclass(slots=True)
class _Piece:
    """Small tensors that are copied into one block.

    Args:
        places: Their places among the gradients.
        starts: First element of each in the block.
        owner: Place of the tensor of each row, (rows,) int64.
        block: The block, (rows, width), in memory that all pieces of a thread share.
        spaces: Where each goes, in its own shape.
    """

    places: list[int]
    starts: list[int]
    owner: Tensor
    block: Tensor
    spaces: list[Tensor] = field(default_factory=list)

    def fill(self, gradients: Sequence[Tensor]) -> Tensor:
        own = [gradients[place] for place in self.places]
        block = self.block.zero_()
        try:
            torch._foreach_copy_(self.spaces or self._fit(own), own)
        except RuntimeError:  # others of the same sizes and another shape
            torch._foreach_copy_(self._fit(own), own)
        return block

    def _fit(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        flat = self.block.view(-1)
        self.spaces = [
            flat[start : start + each.numel()].view(each.shape)
            for start, each in zip(self.starts, tensors, strict=True)
        ]
        return self.spaces


@dataclass(slots=True)
class _Plan:
    """Places of tensors in blocks; those of a model are the same in each step.

    Args:
        pieces: Of small tensors.
        large: Places of the others.
        is_exact: Whether float64 takes no longer, as the tensors are few.
        sizes: Elements of each, (tensors,) float64.
        limits: Norm of each above which it is certified, (tensors,) float64.
    """

    pieces: list[_Piece]
    large: list[int]
    is_exact: bool
    sizes: Tensor
    limits: Tensor


def _new_plan(sizes: tuple[int, ...], dtype: torch.dtype) -> _Plan:
    direct = DIRECT_ROWS * WIDTH
    narrow = [place for place, size in enumerate(sizes) if 0 < size < WIDTH // 2]
    narrow = narrow if len(narrow) >= MIN_NARROW else []
    least = WIDTH // 2 if narrow else 1
    wide = [place for place, size in enumerate(sizes) if least <= size < direct]
    scratch, pieces = _memory.scratch(dtype), list[_Piece]()
    for width, places in ((NARROW, narrow), (WIDTH, wide)):
        pieces += _cut(sizes, places, scratch.view(-1, width))
    elements = torch.tensor(sizes, dtype=torch.float64, device="cpu")
    limits = elements.sqrt().mul_(_SAFE_PER_ELEMENT[dtype]).masked_fill_(elements == 0.0, -1.0)
    is_exact = dtype is torch.float32 and sum(-(-size // WIDTH) for size in sizes) <= DIRECT_ROWS
    return _Plan(
        pieces=pieces,
        large=[place for place, size in enumerate(sizes) if size >= direct],
        is_exact=is_exact,
        sizes=elements,
        limits=limits.fill_(-1.0) if is_exact else limits,
    )


def _cut(sizes: Sequence[int], places: Sequence[int], scratch: Tensor) -> Iterator[_Piece]:
    """Yield pieces that fit into the scratch, (rows, width)."""
    width, own, starts, counts = scratch.shape[1], list[int](), list[int](), list[int]()
    num_rows = 0
    for place in [*places, None]:
        rows = 0 if place is None else -(-sizes[place] // width)
        if own and (place is None or num_rows + rows > len(scratch)):
            owner = torch.tensor(own, device="cpu").repeat_interleave(
                torch.tensor(counts, device="cpu")
            )
            yield _Piece(own, starts, owner, scratch[:num_rows])
            own, starts, counts, num_rows = [], [], [], 0
        if place is not None:
            own.append(place)
            starts.append(num_rows * width)
            counts.append(rows)
            num_rows += rows


def _new_scratch(dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(mode=False):  # it is written to outside of that mode too
        return torch.empty(BLOCK_ROWS, WIDTH, dtype=dtype, device="cpu")


class _Memory(threading.local):
    """Memory of one thread: a scratch for each dtype, and plans of the newest sets of sizes."""

    def __init__(self) -> None:
        self.scratch = lru_cache(maxsize=None)(_new_scratch)
        self.plan = lru_cache(maxsize=8)(_new_plan)

    def plan_of(self, gradients: Sequence[Tensor], dtype: torch.dtype) -> _Plan:
        return self.plan(tuple(map(Tensor.numel, gradients)), dtype)


_memory: Final = _Memory()


class _Reduction:
    """Numbers of tensors, from rows that are reduced in one dtype.

    Args:
        dtype: Float32 or float64.
        has_magnitudes: Whether there is more to know than l2, NaN and Inf.
    """

    def __init__(self, dtype: torch.dtype, has_magnitudes: bool) -> None:
        self._dtype = dtype
        self._has_magnitudes = has_magnitudes
        self._scratch = _memory.scratch(dtype)
        self._is_finite = True

    def run(self, gradients: Sequence[Tensor], plan: _Plan) -> Tensor:
        """Return their table."""
        table = _zeros(len(gradients))
        for piece in plan.pieces:
            block = piece.fill(gradients).to(self._dtype)
            self._add_padded(table, block, piece.owner)
        if plan.large:
            self._add_large(table, gradients, plan.large)
        norms, nans, infs = table[:2], table[_NANS], table[_INFS]
        norms[_L2].sqrt_()
        if self._has_magnitudes:
            torch.sub(plan.sizes, table[_ZEROS], out=table[_ZEROS])
        if not self._is_finite:
            table[_ZEROS].sub_(nans)
            norms.masked_fill_(infs > 0.0, math.inf).masked_fill_(nans > 0.0, math.nan)
        return table

    def _add_large(self, table: Tensor, gradients: Sequence[Tensor], places: list[int]) -> None:
        """Reduce tensors where they lie; the numbers of many rows are added up at once."""
        rows, peaks = _Rows(), list[int]()
        for place in places:
            numbers, peak, num_others = table[:, place], 0, 0.0
            for block in self._blocks(gradients[place]):
                own = self._own(block)
                norms, sums = torch.linalg.vector_norm(own, dim=1), None
                if self._has_magnitudes:
                    sums = own.sum(1)
                    largest, others = self._peak_and_others(numbers, own)
                    peak, num_others = max(peak, largest), num_others + others
                rows.add(table, place, norms, sums)
            peaks.append(peak)
            numbers[_ZEROS] = num_others  # as those of small tensors, for now
        rows.flush(table)
        if self._has_magnitudes:
            bits = torch.tensor(peaks, dtype=_INTEGER[self._dtype], device="cpu")
            table[_LINF, places] = bits.view(self._dtype).double()
        elif not math.isfinite(table[_L2].sum().item()):
            for place in places:
                if not table[_L2, place].isfinite():
                    self._count_all(table[:, place], gradients[place])

    def _peak_and_others(self, numbers: Tensor, own: Tensor) -> tuple[int, float]:
        """Return bits of the largest magnitude, and how many are above zero; count NaN and Inf."""
        smallest, largest = (int(each.item()) for each in self._bits(own).aminmax())
        if largest >= _INF_BITS[self._dtype]:
            self._count(numbers, own)
        elif smallest >= _LEAST_BITS[self._dtype]:
            return largest, float(own.numel())
        return largest, _signs(own).double().sum().item()

    def _count_all(self, numbers: Tensor, gradient: Tensor) -> None:
        """Count NaN and Inf of a large tensor."""
        for block in self._blocks(gradient):
            for own in self._own(block).split(BLOCK_ROWS):
                self._count(numbers, own.abs())

    def _blocks(self, gradient: Tensor) -> Iterator[Tensor]:
        """Yield (rows, elements) of a large tensor."""
        in_place = gradient.dtype is self._dtype and not self._has_magnitudes
        for flat in flats(gradient):
            rows = flat.numel() // WIDTH
            if rows:
                body = flat[: rows * WIDTH].view(rows, WIDTH)
                yield from body.split(NORM_ROWS if in_place else BLOCK_ROWS)
            if flat.numel() > rows * WIDTH:
                yield flat[rows * WIDTH :].view(1, -1)

    def _own(self, block: Tensor) -> Tensor:
        """Return a block in the dtype it is reduced in, its magnitudes in the scratch."""
        if block.dtype is self._dtype and not self._has_magnitudes:
            return block
        rows, width = block.shape
        own = self._scratch[:rows]
        own = own if width == WIDTH else own[:, :width]
        if self._has_magnitudes and block.dtype is self._dtype:
            torch.abs(block, out=own)
            return own
        own.copy_(block)
        return own.abs_() if self._has_magnitudes else own

    def _add_padded(self, table: Tensor, block: Tensor, owner: Tensor) -> None:
        """Reduce rows of small tensors, and add them up by tensor; of zeros the others, for now."""
        own = block.abs_() if self._has_magnitudes else block
        found = [torch.linalg.vector_norm(own, dim=1)]
        if self._has_magnitudes:
            peaks = self._bits(own).amax(1)
            if peaks.amax().item() >= _INF_BITS[self._dtype]:
                self._count(table, own, owner)
            found += own.sum(1), _signs(own), peaks.view(self._dtype)
        elif not math.isfinite(found[0].sum().item()):
            self._count(table, own.abs(), owner)
        rows = torch.stack(found).double()
        rows[_L2].square_()
        if self._has_magnitudes:
            table[_LINF].scatter_reduce_(0, owner, rows[-1], "amax")
            rows = rows[:-1]
        table[: len(rows)].index_add_(1, owner, rows)

    def _bits(self, magnitudes: Tensor) -> Tensor:
        """Return magnitudes as whole numbers: in the same order, NaN above all, compared faster."""
        return magnitudes.view(_INTEGER[self._dtype])

    def _count(self, table: Tensor, magnitudes: Tensor, owner: Tensor | None = None) -> None:
        """Count NaN and Inf of rows that have some.

        Args:
            table: The table, or the column of it whose tensor has all rows.
            magnitudes: (rows, elements).
            owner: Place of the tensor of each row, None with a column.
        """
        self._is_finite = False
        bits, infinite = self._bits(magnitudes), _INF_BITS[self._dtype]
        for row, is_bad in ((_NANS, bits > infinite), (_INFS, bits == infinite)):
            counts = is_bad.to(self._dtype).sum(1).double()
            if owner is None:
                table[row] += counts.sum()
            else:
                table[row].index_add_(0, owner, counts)


def _signs(magnitudes: Tensor) -> Tensor:
    """Return (rows,) how many are above zero, and leave their signs behind.

    The sum is exact; to compare and to count takes 8 times as long.
    """
    return magnitudes.sign_().sum(1)


class _Rows:
    """Norms and sums of rows of large tensors, which wait to be added up by tensor."""

    def __init__(self) -> None:
        self._norms: list[Tensor] = []
        self._sums: list[Tensor] = []
        self._places: list[int] = []
        self._counts: list[int] = []
        self._num_rows = 0

    def add(self, table: Tensor, place: int, norms: Tensor, sums: Tensor | None) -> None:
        count = norms.shape[0]
        self._norms.append(norms)
        if sums is not None:
            self._sums.append(sums)
        self._places.append(place)
        self._counts.append(count)
        self._num_rows += count
        if self._num_rows >= _MAX_ROWS:
            self.flush(table)

    def flush(self, table: Tensor) -> None:
        """Add up what waits, in float64."""
        if not self._places:
            return
        places, counts = (torch.tensor(own, device="cpu") for own in (self._places, self._counts))
        owner = places.repeat_interleave(counts)
        table[_L2].index_add_(0, owner, torch.cat(self._norms).double().square_())
        if self._sums:
            table[_L1].index_add_(0, owner, torch.cat(self._sums).double())
        for waiting in (self._norms, self._sums, self._places, self._counts):
            waiting.clear()
        self._num_rows = 0


def _zeros(count: int) -> Tensor:
    return torch.zeros(len(_TABLE), count, dtype=torch.float64, device="cpu")
