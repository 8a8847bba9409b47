"""The CUDA kernel that reads gradients: each once, for all six statistics.

A segment of a tensor is read as whole tiles of 16-byte loads without a mask, a masked rest, and the
few elements in front and behind that no such load reaches. Each lane keeps its own sums, in float32
for what is not float64, and they are reduced once. Where they can have left that range, which the
largest magnitude shows, the segment is read again with sums in float64.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from gradwatch._statistics.triton.combine_kernel import factor_of, store_row

# In the kernels constants stand as numbers. Triton before 3.3 finds compiled code on disk by the
# text of the functions: with another value for a name it would take what was compiled before.

THREADS: Final = 128
"""Of a program of `reduce_segments`, however many make a warp."""

TILE_BYTES: Final = THREADS * 16 * 4
"""Of a tile: four loads of 16 bytes by each thread, all on their way at once."""

MAX_TILES: Final = 96
"""Tiles in a segment. A lane adds at most 8 numbers per tile, then the tiles, then 512 lanes are
put together: no float32 sum is off by more than (8 + 96 + 9) / 2^24 = 7e-6 of itself."""


@triton.jit
def _element(words, half: tl.constexpr, FORMAT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the magnitude of one element of each word, in float32 or float64."""
    if FORMAT == "bf16":  # the upper half of a float32
        bits = words & 0xFFFF0000 if half else words << 16
        x = bits.to(tl.float32, bitcast=True)
    elif FORMAT == "fp16":
        bits = (words >> 16 if half else words).to(tl.uint16)
        x = bits.to(tl.float16, bitcast=True).to(tl.float32)
    elif FORMAT == "fp32":
        x = words.to(tl.float32, bitcast=True)
    else:
        x = words.to(tl.float64, bitcast=True)
    return tl.abs(x)


@triton.jit
def _added(  # type: ignore[no-untyped-def]
    squares, sums, peaks, counts, infs, x, factor, EXACT: tl.constexpr
):
    """Add one magnitude to what each lane has.

    `counts` is the number of zeros, or with EXACT that of NaN; `infs` is of use with EXACT only.
    """
    if EXACT:
        nan = x != x
        inf = x == float("inf")
        counts += nan.to(tl.int32)
        infs += inf.to(tl.int32)
        x = tl.where(nan | inf, 0.0, x)
        wide = x.to(tl.float64) * factor
        squares += wide * wide
        sums += wide
    else:
        counts += (x == 0.0).to(tl.int32)
        squares += x * x
        sums += x
    return squares, sums, tl.maximum(peaks, x), counts, infs


@triton.jit
def _added_tile(  # type: ignore[no-untyped-def]
    squares,
    sums,
    peaks,
    counts,
    infs,
    tile,
    num_words,
    factor,
    LOADS: tl.constexpr,
    FORMAT: tl.constexpr,
    EXACT: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Add a tile, with MASKED only its first words, of which there are a multiple of a vector."""
    BLOCK: tl.constexpr = counts.shape[0]
    own_squares = tl.zeros_like(squares)
    own_sums = tl.zeros_like(sums)
    for load in tl.static_range(LOADS):
        places = load * BLOCK + tl.arange(0, BLOCK)
        if MASKED:
            words = tl.load(tile + places, mask=places < num_words, other=0)
        else:
            words = tl.load(tile + places)
        for half in tl.static_range(2 if (FORMAT == "bf16" or FORMAT == "fp16") else 1):
            x = _element(words, half, FORMAT)
            own_squares, own_sums, peaks, counts, infs = _added(
                own_squares, own_sums, peaks, counts, infs, x, factor, EXACT
            )
    return squares + own_squares, sums + own_sums, peaks, counts, infs


@triton.jit
def _reduced(  # type: ignore[no-untyped-def]
    address, num_front, num_words, num_behind, factor, FORMAT: tl.constexpr, EXACT: tl.constexpr
):
    """Return the squares, sums, peak, zeros or with EXACT NaN, and Inf of a segment.

    Args:
        address: Of its first element.
        num_front: Elements before the first multiple of a vector's bytes.
        num_words: Words after these that are read as whole vectors.
        num_behind: Elements after these.
        factor: By which elements are multiplied, float64; with EXACT only.
        FORMAT: Of the elements; a word has two of 16 bits, or one.
        EXACT: Whether the sums are in float64.
    """
    WORD_BYTES: tl.constexpr = 8 if FORMAT == "fp64" else 4
    PER_WORD: tl.constexpr = 2 if (FORMAT == "bf16" or FORMAT == "fp16") else 1
    BLOCK: tl.constexpr = 2048 // WORD_BYTES  # 16 bytes for each of 128 threads
    LOADS: tl.constexpr = 1 if EXACT else 4
    TILE: tl.constexpr = BLOCK * LOADS
    tile = address + num_front * (WORD_BYTES // PER_WORD)
    if FORMAT == "fp64":
        tile = tl.multiple_of(tile.to(tl.pointer_type(tl.uint64)), 16)
        peaks = tl.zeros((BLOCK,), tl.float64)
    else:
        tile = tl.multiple_of(tile.to(tl.pointer_type(tl.uint32)), 16)
        peaks = tl.zeros((BLOCK,), tl.float32)
    squares = peaks.to(tl.float64) if EXACT else peaks
    sums = squares
    counts = tl.zeros((BLOCK,), tl.int32)
    infs = counts
    for _ in range(num_words // TILE):
        squares, sums, peaks, counts, infs = _added_tile(
            squares, sums, peaks, counts, infs, tile, 0, factor, LOADS, FORMAT, EXACT, False
        )
        tile += TILE
    num_left = tl.multiple_of(num_words % TILE, 16 // WORD_BYTES)
    num_padding = 0
    if num_left > 0:
        squares, sums, peaks, counts, infs = _added_tile(
            squares, sums, peaks, counts, infs, tile, num_left, factor, LOADS, FORMAT, EXACT, True
        )
        num_padding += (TILE - num_left) * PER_WORD
    num_edges = num_front + num_behind
    if num_edges > 0:
        lanes = tl.arange(0, BLOCK)
        inside = lanes < num_edges
        places = tl.where(lanes < num_front, lanes, lanes + num_words * PER_WORD)
        if FORMAT == "fp64":
            words = tl.load(address.to(tl.pointer_type(tl.uint64)) + places, mask=inside, other=0)
        elif FORMAT == "fp32":
            words = tl.load(address.to(tl.pointer_type(tl.uint32)) + places, mask=inside, other=0)
        else:
            short = tl.load(address.to(tl.pointer_type(tl.uint16)) + places, mask=inside, other=0)
            words = short.to(tl.uint32)
        squares, sums, peaks, counts, infs = _added(
            squares, sums, peaks, counts, infs, _element(words, 0, FORMAT), factor, EXACT
        )
        num_padding += BLOCK - num_edges
    # What is read beside the elements is 0: it adds to nothing but the zeros.
    return (
        tl.sum(squares).to(tl.float64),
        tl.sum(sums).to(tl.float64),
        tl.max(peaks).to(tl.float64),
        tl.sum(counts) if EXACT else tl.sum(counts) - num_padding,
        tl.sum(infs),
    )


@triton.jit
def segment_statistics(address, begin, end, numel, FORMAT: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the numbers of a segment, float64 each.

    Args:
        address: Of the tensor's first element.
        begin: First element of the segment, a multiple of those in a vector.
        end: Behind its last one, as many as there are or such a multiple.
        numel: Elements of the tensor.
        FORMAT: Of the elements: fp16, bf16, fp32 or fp64.

    Returns:
        Its norm, the same without rounding to subnormal numbers (minus 2^600 times the norm where
        that is so small), l1, the largest magnitude, and the numbers of zeros, NaN and Inf.
    """
    ITEM_BYTES: tl.constexpr = 8 if FORMAT == "fp64" else (4 if FORMAT == "fp32" else 2)
    PER_VECTOR: tl.constexpr = 16 // ITEM_BYTES
    WORDS_PER_VECTOR: tl.constexpr = 2 if FORMAT == "fp64" else 4
    # Segments begin where vectors do, but for the first of a tensor.
    unaligned = ((0 - address) & 15) // ITEM_BYTES
    low = tl.where(begin > 0, tl.minimum(begin + unaligned, numel), 0)
    high = tl.minimum(end + unaligned, numel)
    count = (high - low).to(tl.int32)
    num_front = tl.where(begin > 0, 0, tl.minimum(unaligned, high)).to(tl.int32)
    num_vectors = (count - num_front) // PER_VECTOR
    num_behind = count - num_front - num_vectors * PER_VECTOR
    num_words = num_vectors * WORDS_PER_VECTOR
    address += low * ITEM_BYTES
    squares, sums, peak, zeros, infs = _reduced(
        address, num_front, num_words, num_behind, 1.0, FORMAT, False
    )
    norm = tl.sqrt(squares)
    unrounded = norm
    nans = infs
    least = 3.0549363634996047e-151 if FORMAT == "fp64" else 9.094947017729282e-13  # 2^-40
    quick = (squares < float("inf")) & (sums < float("inf")) & ((peak >= least) | (peak == 0.0))
    if quick == 0:
        factor, inverse = factor_of(peak)
        squares, sums, peak, nans, infs = _reduced(
            address, num_front, num_words, num_behind, factor, FORMAT, True
        )
        norm = tl.sqrt(squares)
        # In a partial result no rounding to subnormal numbers: a minus says that it is scaled.
        unrounded = tl.where(inverse < 1.0, -norm, norm * inverse)
        norm = norm * inverse
        sums = sums * inverse
    zeros = zeros.to(tl.float64)
    return norm, unrounded, sums, peak, zeros, nans.to(tl.float64), infs.to(tl.float64)


@triton.jit(do_not_specialize=["first_program", "out", "out_stride", "num_partials"])
def reduce_segments(  # type: ignore[no-untyped-def]
    addresses,
    programs,
    segments,
    partials,
    out,
    first_program,
    num_partials,
    out_stride,
    FORMAT: tl.constexpr,
):
    """Reduce the segments of one program, one after the other.

    Args:
        addresses: (tensors,) int64, of the first element of each.
        programs: (programs + 1,) int64, the first segment of each.
        segments: (segments, 5) int64: tensor, first and last element, elements of the tensor, and
            where the result goes: the tensor's number, or ~(number of the partial result).
        partials: (NUM_ROWS, partials) float64, written.
        out: (NUM_ROWS, tensors) float64, written.
        first_program: The first program of this format.
        num_partials: Partial results in all.
        out_stride: From one row of `out` to the next.
        FORMAT: Of the elements: fp16, bf16, fp32 or fp64.
    """
    program = programs + first_program + tl.program_id(0)
    for segment in range(tl.load(program), tl.load(program + 1)):
        own = segments + segment * 5
        address = tl.load(addresses + tl.load(own))
        begin, end = tl.load(own + 1), tl.load(own + 2)
        norm, unrounded, sums, peak, zeros, nans, infs = segment_statistics(
            address, begin, end, tl.load(own + 3), FORMAT
        )
        place = tl.load(own + 4)
        if place < 0:
            row = partials + (-1 - place)
            store_row(row, num_partials, unrounded, sums, peak, zeros, nans, infs, False)
        else:
            store_row(out + place, out_stride, norm, sums, peak, zeros, nans, infs, True)
