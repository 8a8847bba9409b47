"""The CUDA kernel that puts the segments of tensors together, and what a result looks like."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

# In the kernels constants stand as numbers. Triton before 3.3 finds compiled code on disk by the
# text of the functions: with another value for a name it would take what was compiled before.

THREADS: Final = 512
"""Of a program of `combine_segments`, however many make a warp."""

NUM_ROWS: Final = 6
"""Numbers per segment and per tensor: l2, l1, linf, zeros, nans, infs."""


@triton.jit
def factor_of(peak):  # type: ignore[no-untyped-def]
    """Return the power of two by which float64 numbers are multiplied to be squared, and 1 / it.

    With it the square of a number not above the peak overflows as little as their sum, and that of
    the peak is far from underflow.
    """
    factor = tl.where(peak > 3.273390607896142e150, 2.409919865102884e-181, 1.0)  # 2^500, 2^-600
    inverse = tl.where(peak > 3.273390607896142e150, 4.149515568880993e180, 1.0)
    factor = tl.where(peak < 3.0549363634996047e-151, 4.149515568880993e180, factor)  # 2^-500
    inverse = tl.where(peak < 3.0549363634996047e-151, 2.409919865102884e-181, inverse)
    return factor, inverse


@triton.jit
def store_row(  # type: ignore[no-untyped-def]
    row, stride, norm, magnitudes, peak, zeros, nans, infs, FINAL: tl.constexpr
):
    # A norm beyond the range of float64 is no sign of an Inf element.
    norm = tl.minimum(norm, 1.7976931348623157e308)
    magnitudes = tl.minimum(magnitudes, 1.7976931348623157e308)
    if FINAL:
        bad = tl.where(nans > 0.0, float("nan"), float("inf"))
        finite = nans + infs == 0.0
        norm = tl.where(finite, norm, bad)
        magnitudes = tl.where(finite, magnitudes, bad)
        peak = tl.where(finite, peak, bad)
    tl.store(row, norm)
    tl.store(row + stride, magnitudes)
    tl.store(row + 2 * stride, peak)
    tl.store(row + 3 * stride, zeros)
    tl.store(row + 4 * stride, nans)
    tl.store(row + 5 * stride, infs)


@triton.jit(do_not_specialize=["out", "out_stride", "num_partials"])
def combine_segments(  # type: ignore[no-untyped-def]
    tensors, partials, out, num_partials, out_stride
):
    """Put the segments of one tensor together.

    Args:
        tensors: (tensors of several segments, 3) int64: number, first and last partial result.
        partials: (NUM_ROWS, partials) float64.
        out: (NUM_ROWS, all tensors) float64, written.
        num_partials: Partial results in all.
        out_stride: From one row of `out` to the next.
    """
    AT_ONCE: tl.constexpr = 512
    own = tensors + tl.program_id(0) * 3
    begin, end = tl.load(own + 1), tl.load(own + 2)
    lanes = tl.arange(0, AT_ONCE)
    zero = tl.zeros((AT_ONCE,), tl.float64)
    highest, magnitudes, peaks, zeros, nans, infs = zero, zero, zero, zero, zero, zero
    for first in range(begin, end, AT_ONCE):
        place = first + lanes
        row = partials + place
        inside = place < end
        highest = tl.maximum(highest, tl.load(row, mask=inside, other=0.0))
        magnitudes += tl.load(row + num_partials, mask=inside, other=0.0)
        peaks = tl.maximum(peaks, tl.load(row + 2 * num_partials, mask=inside, other=0.0))
        zeros += tl.load(row + 3 * num_partials, mask=inside, other=0.0)
        nans += tl.load(row + 4 * num_partials, mask=inside, other=0.0)
        infs += tl.load(row + 5 * num_partials, mask=inside, other=0.0)
    highest_norm = tl.max(highest)
    factor, inverse = factor_of(highest_norm)
    # Norms that are scaled count if there are no others.
    scaled = tl.where(highest_norm > 0.0, 2.409919865102884e-181, 1.0)
    squares = zero
    for first in range(begin, end, AT_ONCE):
        place = first + lanes
        norms = tl.load(partials + place, mask=place < end, other=0.0)
        norms = tl.where(norms < 0.0, norms * scaled, norms * factor)
        squares += norms * norms
    norm = tl.sqrt(tl.sum(squares)) * inverse
    l1, linf, num_zeros = tl.sum(magnitudes), tl.max(peaks), tl.sum(zeros)
    num_nans, num_infs = tl.sum(nans), tl.sum(infs)
    row = out + tl.load(own)
    store_row(row, out_stride, norm, l1, linf, num_zeros, num_nans, num_infs, True)
