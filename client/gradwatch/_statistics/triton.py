"""The CUDA path: one kernel reads each gradient once, for all six statistics of all tensors.

Each program reduces a segment of one tensor, tile by tile. The magnitudes of a tile are divided by
the largest of them before they are squared, so that no sum leaves float32's range, however large
or small the tile; tiles are put together as `scale * sqrt(sum)` in float64. A second, small kernel
puts the segments of each tensor together. In all a few launches, no atomics, no synchronisation;
the result does not depend on how the programs are scheduled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradwatch._statistics.gradients import flats
from gradwatch_wire.columns import INFS, L1, L2, LINF, NANS, ZEROS

TILE: Final = 4096
"""Elements in one tile."""

MAX_SEGMENTS: Final = 16_384
"""Segments that a group of tensors is cut into, besides one per tensor: 0.8 MB of partial sums."""

ALIGNMENT: Final = 16
"""Bytes at whose multiples a tensor has to begin for the widest loads."""

ROW_COLUMNS: Final = (L2, L1, LINF, ZEROS, NANS, INFS)
"""What the kernels write to each row of their output. Those of the partial sums are the same, the
norms there being of the finite elements."""

ROWS: Final = len(ROW_COLUMNS)

_DTYPES: Final = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


@triton.jit
def _added(scale, total, peak, squares):  # type: ignore[no-untyped-def]  # a kernel
    """Add peak^2 * squares to scale^2 * total; return the new scale and total, float64."""
    larger = tl.maximum(scale, peak)
    divisor = tl.where(larger > 0.0, larger, 1.0)
    old, new = scale / divisor, peak / divisor
    return larger, total * old * old + squares * new * new


@triton.jit
def _reduce_segments(  # type: ignore[no-untyped-def]  # a kernel
    pointers,
    numels,
    first_segments,
    piece_of,
    partials,
    num_segments,
    tiles,
    TILE: tl.constexpr,
    DTYPE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Reduce one segment: `tiles` tiles of one piece.

    Args:
        pointers: (pieces,) int64, address of each piece's first element.
        numels: (pieces,) int64.
        first_segments: (pieces,) int64, the first segment of each.
        piece_of: (segments,) int64.
        partials: (ROWS, segments) float64, written.
        num_segments: Segments in all.
        tiles: Tiles in a segment.
        TILE: Elements in a tile.
        DTYPE: Of the elements.
        ALIGNED: Whether all pieces begin at a multiple of `ALIGNMENT` bytes.
    """
    segment = tl.program_id(0)
    piece = tl.load(piece_of + segment)
    pointer = tl.load(pointers + piece).to(
        tl.pointer_type(tl.uint16 if tl.bfloat16 == DTYPE else DTYPE)
    )
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    numel = tl.load(numels + piece)
    begin = (segment - tl.load(first_segments + piece)) * tiles * TILE
    scale = tl.zeros((), tl.float64)
    total = tl.zeros((), tl.float64)
    magnitudes = tl.zeros((), tl.float64)
    zeros = tl.zeros((), tl.int64)
    nans = tl.zeros((), tl.int64)
    infs = tl.zeros((), tl.int64)
    for tile in range(tiles):
        offsets = begin + tile * TILE + tl.arange(0, TILE)
        inside = offsets < numel
        x = tl.load(pointer + offsets, mask=inside, other=1)
        if tl.bfloat16 == DTYPE:
            # The upper half of a float32: exact in the interpreter, too, for subnormals as well.
            x = (x.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
        elif tl.float64 != DTYPE:
            x = x.to(tl.float32)
        x = tl.abs(x)
        nan = x != x
        inf = x == float("inf")
        zeros += tl.sum(((x == 0.0) & inside).to(tl.int64))
        nans += tl.sum((nan & inside).to(tl.int64))
        infs += tl.sum((inf & inside).to(tl.int64))
        x = tl.where(nan | inf | (offsets >= numel), 0.0, x)
        peak = tl.max(x).to(tl.float64)
        # Below, the reciprocal would overflow: 2^-100 in float32, 2^-900 in float64.
        small = peak < (1.1830521861667747e-271 if tl.float64 == DTYPE else 7.888609052210118e-31)
        if small:
            # 2^1000 lifts the smallest float64 to 2^-74; a small peak stays far below overflow.
            lifted = x.to(tl.float64) * 1.0715086071862673e301
            high = peak * 1.0715086071862673e301
            ratio = lifted / tl.where(high > 0.0, high, 1.0)
            squares = tl.sum(ratio * ratio)
            sums = tl.sum(ratio)
        else:
            part = x * (1.0 / peak).to(x.dtype)
            squares = tl.sum(part * part).to(tl.float64)
            sums = tl.sum(part).to(tl.float64)
        magnitudes += sums * peak
        scale, total = _added(scale, total, peak, squares)
    # A norm beyond the range of float64 is no sign of an Inf element.
    tl.store(partials + segment, tl.minimum(scale * tl.sqrt(total), 1.7976931348623157e308))
    tl.store(partials + num_segments + segment, tl.minimum(magnitudes, 1.7976931348623157e308))
    tl.store(partials + 2 * num_segments + segment, scale)
    tl.store(partials + 3 * num_segments + segment, zeros.to(tl.float64))
    tl.store(partials + 4 * num_segments + segment, nans.to(tl.float64))
    tl.store(partials + 5 * num_segments + segment, infs.to(tl.float64))


@triton.jit
def _combine(  # type: ignore[no-untyped-def]  # a kernel
    partials, bounds, values, num_segments, num_tensors, CHUNK: tl.constexpr
):
    """Put the segments of one tensor together.

    Args:
        partials: (ROWS, segments) float64.
        bounds: (tensors + 1,) int64, where the segments of each tensor begin and end.
        values: (ROWS, tensors) float64, written.
        num_segments: Segments in all.
        num_tensors: Tensors in all.
        CHUNK: Segments that are read at once.
    """
    tensor = tl.program_id(0)
    begin, end = tl.load(bounds + tensor), tl.load(bounds + tensor + 1)
    scale = tl.zeros((), tl.float64)
    total = tl.zeros((), tl.float64)
    magnitudes = tl.zeros((), tl.float64)
    largest = tl.zeros((), tl.float64)
    zeros = tl.zeros((), tl.float64)
    nans = tl.zeros((), tl.float64)
    infs = tl.zeros((), tl.float64)
    for first in range(begin, end, CHUNK):
        place = first + tl.arange(0, CHUNK)
        own = partials + place
        inside = place < end
        norms = tl.load(own, mask=inside, other=0.0)
        peak = tl.max(norms)
        # Norms of segments are at least 2^-1074 where they are not zero: no reciprocal is taken.
        ratio = norms / tl.where(peak > 0.0, peak, 1.0)
        scale, total = _added(scale, total, peak, tl.sum(ratio * ratio))
        magnitudes += tl.sum(tl.load(own + num_segments, mask=inside, other=0.0))
        largest = tl.maximum(
            largest, tl.max(tl.load(own + 2 * num_segments, mask=inside, other=0.0))
        )
        zeros += tl.sum(tl.load(own + 3 * num_segments, mask=inside, other=0.0))
        nans += tl.sum(tl.load(own + 4 * num_segments, mask=inside, other=0.0))
        infs += tl.sum(tl.load(own + 5 * num_segments, mask=inside, other=0.0))
    norm = tl.minimum(scale * tl.sqrt(total), 1.7976931348623157e308)
    magnitudes = tl.minimum(magnitudes, 1.7976931348623157e308)
    bad = tl.where(nans > 0.0, float("nan"), float("inf"))
    finite = nans + infs == 0.0
    tl.store(values + tensor, tl.where(finite, norm, bad))
    tl.store(values + num_tensors + tensor, tl.where(finite, magnitudes, bad))
    tl.store(values + 2 * num_tensors + tensor, tl.where(finite, largest, bad))
    tl.store(values + 3 * num_tensors + tensor, zeros)
    tl.store(values + 4 * num_tensors + tensor, nans)
    tl.store(values + 5 * num_tensors + tensor, infs)


@dataclass(slots=True)
class _Group:
    """Pieces of one dtype and alignment, of whole tensors."""

    places: list[int] = field(default_factory=list)  # of the tensors
    num_pieces: list[int] = field(default_factory=list)  # of each tensor
    pieces: list[Tensor] = field(default_factory=list)


def triton_statistics(gradients: Sequence[Tensor], columns: Sequence[str]) -> dict[str, Tensor]:
    """Return each column as (gradients,) float64; see `statistics`.

    Raises:
        KeyError: If a dtype is not a floating one of 16 to 64 bits, or there is no such column.
    """
    device = gradients[0].device
    values = torch.empty(ROWS, len(gradients), dtype=torch.float64, device=device)
    with torch.cuda.device_of(gradients[0]):
        groups = _grouped(gradients)
        for (dtype, aligned), group in groups.items():
            found = _reduce(group, dtype, aligned=aligned)
            if len(groups) == 1:
                values = found
            else:
                values.index_copy_(1, _to_device(group.places, device), found)
    rows = dict(zip(ROW_COLUMNS, values, strict=True))
    return {name: rows[name] for name in columns}


def _grouped(gradients: Sequence[Tensor]) -> dict[tuple[torch.dtype, bool], _Group]:
    groups: dict[tuple[torch.dtype, bool], _Group] = {}
    for place, gradient in enumerate(gradients):
        pieces = list(flats(gradient))
        aligned = all(piece.data_ptr() % ALIGNMENT == 0 for piece in pieces)
        group = groups.setdefault((gradient.dtype, aligned), _Group())
        group.places.append(place)
        group.num_pieces.append(len(pieces))
        group.pieces += pieces
    return groups


def _reduce(group: _Group, dtype: torch.dtype, *, aligned: bool) -> Tensor:
    """Return (ROWS, tensors) float64."""
    device = group.pieces[0].device
    numels = [piece.numel() for piece in group.pieces]
    tiles = max(1, -(-sum(numels) // (TILE * MAX_SEGMENTS)))
    counts = [-(-numel // (TILE * tiles)) for numel in numels]
    firsts = list(accumulate(counts, initial=0))
    bounds = [firsts[piece] for piece in accumulate(group.num_pieces, initial=0)]
    num_pieces, num_segments, num_tensors = len(numels), firsts[-1], len(group.places)
    pointers = [piece.data_ptr() for piece in group.pieces]
    table = _to_device([*pointers, *numels, *counts, *firsts, *bounds], device)
    parts = table.split([num_pieces, num_pieces, num_pieces, num_pieces + 1, num_tensors + 1])
    # Without its output's size it would have to wait for the device to tell it.
    piece_of = torch.repeat_interleave(
        torch.arange(num_pieces, device=device), parts[2], output_size=num_segments
    )
    partials = torch.empty(ROWS, num_segments, dtype=torch.float64, device=device)
    values = torch.empty(ROWS, num_tensors, dtype=torch.float64, device=device)
    if num_segments:
        _reduce_segments[(num_segments,)](
            parts[0],
            parts[1],
            parts[3],
            piece_of,
            partials,
            num_segments,
            tiles,
            TILE=TILE,
            DTYPE=_DTYPES[dtype],
            ALIGNED=aligned,
        )
    _combine[(num_tensors,)](partials, parts[4], values, num_segments, num_tensors, CHUNK=512)
    return values


def _to_device(numbers: list[int], device: torch.device) -> Tensor:
    """Copy to the device without waiting for it."""
    on_host = torch.tensor(
        numbers, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda"
    )
    return on_host.to(device, non_blocking=True)
