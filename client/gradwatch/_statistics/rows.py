"""The path for CPU tensors: float32 sums over short rows, combined in float64.

A plain float32 norm overflows from 1.8e19 on, loses what is below 1e-19, and drifts by up to 2 %
over 40 million elements; float64 for all takes 3 to 9 times as long. So every tensor is cut into
rows of 1,024 elements, all rows are reduced by a few vectorised calls while they lie in the cache,
and the rows of each tensor are put together in float64. The few tensors whose sums left the range
of float32 are done again, exactly. Small tensors share a block of rows, padded with zeros.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

from gradwatch._statistics.gradients import chunks, count_nonfinite, flats, is_packed
from gradwatch_wire.columns import INFS, L1, L2, LINF, NANS, ZEROS

WIDTH: Final = 1024
"""Elements summed in float32 before float64 takes over: error below 1e-6, measured."""

BLOCK_ROWS: Final = 256
"""Rows that are reduced at once: their magnitudes are 1 MB of float32, which stay in a core's own
cache from call to call; with fewer the calls themselves begin to count."""

NORM_ROWS: Final = 4096
"""Rows reduced at once where there is a single pass: the cache does not matter, fewer calls do."""

DIRECT_ROWS: Final = 32
"""From this many rows on a tensor is reduced by itself."""

_FLUSH_ROWS: Final = 32_768
"""Rows whose sums wait to be added up by tensor: 3 MB with their copies."""

_SAFE_PER_ELEMENT: Final = 1e-16
"""A float32 norm above this times sqrt(numel) lost less than 1e-6 to squares that underflow."""


def row_statistics(gradients: Sequence[Tensor], columns: Sequence[str]) -> dict[str, Tensor]:
    """Return each column as (gradients,) float64; see `statistics`."""
    values = {
        name: torch.empty(len(gradients), dtype=torch.float64, device="cpu") for name in columns
    }
    for dtype in (torch.float32, torch.float64):
        wide = dtype is torch.float64
        places = [i for i, g in enumerate(gradients) if (g.dtype is torch.float64) == wide]
        if not places:
            continue
        mine = [gradients[place] for place in places]
        found = _Table(mine, columns, dtype).read()
        for name in columns:
            values[name][places] = found[name]
    return values


class _Table:
    """Adds sums of rows up to sums of tensors, for tensors reduced in one dtype."""

    def __init__(
        self, gradients: Sequence[Tensor], columns: Sequence[str], dtype: torch.dtype
    ) -> None:
        self._gradients = gradients
        self._columns = columns
        self._dtype = dtype
        self._bits = torch.int64 if dtype is torch.float64 else torch.int32
        self._least_bits = 1 << (52 if dtype is torch.float64 else 23)  # of a normal number
        self._magnitudes = bool({L1, LINF, ZEROS} & set(columns))
        self._zeros = ZEROS in columns
        names = [L2, *[L1, LINF] * self._magnitudes, *[ZEROS] * self._zeros]
        self._sums = {
            name: torch.zeros(len(gradients), dtype=torch.float64, device="cpu") for name in names
        }
        self._padding = [0] * len(gradients)
        self._scratch = torch.empty(BLOCK_ROWS, WIDTH, dtype=dtype, device="cpu")
        self._no_zeros = torch.zeros(BLOCK_ROWS, dtype=dtype, device="cpu")
        self._pieces: list[Tensor] = []
        self._sizes: list[int] = []
        self._piece_owners: list[int] = []
        self._piece_counts: list[int] = []
        self._num_shared = 0
        self._rows: dict[str, list[Tensor]] = {name: [] for name in names}
        self._owners: list[int] = []
        self._counts: list[int] = []
        self._num_rows = 0

    def read(self) -> dict[str, Tensor]:
        """Return the columns, (tensors,) float64 each."""
        for place, gradient in enumerate(self._gradients):
            if gradient.numel() < DIRECT_ROWS * WIDTH and gradient.is_contiguous():
                self._share(place, gradient if gradient.dim() == 1 else gradient.view(-1))
                continue
            is_view = is_packed(gradient)
            for rows, rest in _cut(gradient):
                if rows.numel():
                    self._add_own(place, rows)
                    # Listed as a view it would keep the whole copy that it was cut from.
                    rest = rest if is_view else rest.clone()  # noqa: PLW2901 - the same numbers
                self._share(place, rest)
        self._add_shared()
        self._flush()
        return self._finish()

    def _share(self, place: int, piece: Tensor) -> None:
        """Put a 1-d piece on the list of those that are copied into one block of rows."""
        numel = piece.numel()
        if not numel:
            return
        count = -(-numel // WIDTH)
        if self._num_shared + count > BLOCK_ROWS:
            self._add_shared()
        self._num_shared += count
        self._pieces.append(piece)
        self._sizes += (numel, count * WIDTH - numel)
        self._padding[place] += count * WIDTH - numel
        self._piece_owners.append(place)
        self._piece_counts.append(count)

    def _add_own(self, place: int, rows: Tensor) -> None:
        """Reduce rows that belong to one tensor, where they lie."""
        in_place = rows.dtype is self._dtype and not self._magnitudes
        for block in rows.split(NORM_ROWS if in_place else BLOCK_ROWS):
            self._reduce(block, [place], [block.shape[0]])

    def _add_shared(self) -> None:
        """Copy the listed pieces into the scratch, each from a row of its own on."""
        if not self._pieces:
            return
        block = self._scratch[: self._num_shared].zero_()
        torch._foreach_copy_(block.view(-1).split(self._sizes)[::2], self._pieces)
        self._reduce(block, self._piece_owners, self._piece_counts)
        self._num_shared = 0
        self._pieces, self._sizes, self._piece_owners, self._piece_counts = [], [], [], []

    def _reduce(self, block: Tensor, owners: list[int], counts: list[int]) -> None:
        """Reduce (rows, WIDTH) of which each owner has so many, in their order."""
        rows = block.shape[0]
        # Written once into the cache, the magnitudes are read from there by all that follows.
        own = self._absolute(block, rows) if self._magnitudes else self._widened(block, rows)
        self._rows[L2].append(torch.linalg.vector_norm(own, dim=1))
        if self._magnitudes:
            self._rows[L1].append(own.sum(1))
            # Bits of magnitudes are in the order of the magnitudes, NaN above all, and comparing
            # whole numbers takes half the time.
            bits = own.view(self._bits)
            smallest, largest = bits.aminmax()
            peaks = largest.expand(rows) if len(owners) == 1 else bits.amax(1)
            self._rows[LINF].append(peaks.view(self._dtype))
            if self._zeros:
                # Below the smallest normal number the CPU may be set to see zeros.
                none = smallest.item() >= self._least_bits
                zeros = self._no_zeros[:rows] if none else own.eq_(0.0).sum(1)
                self._rows[ZEROS].append(zeros)
        self._owners += owners
        self._counts += counts
        self._num_rows += rows
        if self._num_rows >= _FLUSH_ROWS:
            self._flush()

    def _absolute(self, block: Tensor, rows: int) -> Tensor:
        """Put the magnitudes of a block into the scratch."""
        if block.dtype is self._dtype:
            return torch.abs(block, out=self._scratch[:rows])
        return self._widened(block, rows).abs_()

    def _widened(self, block: Tensor, rows: int) -> Tensor:
        """Return a block in the dtype it is reduced in."""
        return block if block.dtype is self._dtype else self._scratch[:rows].copy_(block)

    def _flush(self) -> None:
        """Add the sums of rows to those of their tensors, in float64."""
        if not self._num_rows:
            return
        owner = torch.repeat_interleave(
            torch.tensor(self._owners, device="cpu"), torch.tensor(self._counts, device="cpu")
        )
        for name, parts in self._rows.items():
            rows = torch.cat(parts).double()
            if name == LINF:
                self._sums[name].scatter_reduce_(0, owner, rows, "amax")
            else:
                self._sums[name].index_add_(0, owner, rows.square() if name == L2 else rows)
            parts.clear()
        self._owners, self._counts, self._num_rows = [], [], 0

    def _finish(self) -> dict[str, Tensor]:
        """Recompute sums that left float32's range; count NaN and Inf where there may be any."""
        sums = self._sums
        sums[L2].sqrt_()
        if self._zeros:
            sums[ZEROS] -= torch.tensor(self._padding, device="cpu")
        numels = [gradient.numel() for gradient in self._gradients]
        sizes = torch.tensor(numels, dtype=torch.float64, device="cpu")
        safe = sums[L2].isfinite() & (sums[L2] > sizes.sqrt() * _SAFE_PER_ELEMENT)
        if self._magnitudes:
            safe = (safe | (sums[LINF] == 0.0)) & sums[L1].isfinite()
        nonfinite = {name: torch.zeros_like(sizes) for name in (NANS, INFS)}
        for place in (~safe).nonzero().flatten().tolist():
            self._repair(place, nonfinite)
        return {name: (sums | nonfinite)[name] for name in self._columns}

    def _repair(self, place: int, nonfinite: dict[str, Tensor]) -> None:
        gradient = self._gradients[place]
        exact = exact_norms(gradient)
        for name in self._sums.keys() & exact.keys():
            self._sums[name][place] = exact[name]
        if not math.isfinite(exact[LINF]) and {NANS, INFS} & set(self._columns):
            nonfinite[NANS][place], nonfinite[INFS][place] = count_nonfinite(gradient)


def _cut(gradient: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (rows, WIDTH) views of what is reduced by itself, and 1-d rests."""
    for flat in flats(gradient):
        rows = flat.numel() // WIDTH
        rows = rows if rows >= DIRECT_ROWS else 0
        body, rest = flat.split([rows * WIDTH, flat.numel() - rows * WIDTH])
        yield body.view(rows, WIDTH), rest


def exact_norms(gradient: Tensor) -> dict[str, float]:
    """Return l2, l1 and linf, scaled by the largest magnitude: no square leaves float64's range.

    A norm beyond the largest float64 is given as that: it is no sign of an Inf element.
    """
    # Tensor.max, unlike Python's, lets a NaN through.
    peaks = [chunk.double().abs().amax() for chunk in chunks(gradient) if chunk.numel()]
    largest = float(torch.stack(peaks).max()) if peaks else 0.0
    if largest == 0.0 or not math.isfinite(largest):
        return dict.fromkeys((L2, L1, LINF), largest)
    squares = magnitudes = 0.0
    for chunk in chunks(gradient):
        scaled = chunk.double() / largest
        squares += float(scaled.square().sum())
        magnitudes += float(scaled.abs().sum())
    return {
        L2: min(largest * math.sqrt(squares), sys.float_info.max),
        L1: min(largest * magnitudes, sys.float_info.max),
        LINF: largest,
    }
