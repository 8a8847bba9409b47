"""The kernels of hooks: one launch for the norm of one tensor, one that puts all of them together.

What is launched for a tensor leaves a norm for each program, its parts. Where a tensor lies and how
many elements it has are numbers among the arguments: nothing is uploaded.
"""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from gradwatch._statistics.triton.combine_kernel import factor_of
from gradwatch._statistics.triton.reduce_kernel import segment_statistics

# In the kernels constants stand as numbers. Triton before 3.3 finds compiled code on disk by the
# text of the functions: with another value for a name it would take what was compiled before.

THREADS: Final = 128
"""Of a program that puts parts together, however many make a warp."""


@triton.jit
def _joined(first, second):  # type: ignore[no-untyped-def]
    """Return the norm of two parts, finite ones; a minus says that one is 2^600 times its norm."""
    is_scaled = (first <= 0.0) & (second <= 0.0)
    # Numbers that are scaled count as they are if there are no others.
    scale = tl.where(is_scaled, 1.0, 2.409919865102884e-181)  # 2^-600
    first = tl.where(first < 0.0, -first * scale, first)
    second = tl.where(second < 0.0, -second * scale, second)
    factor, inverse = factor_of(tl.maximum(first, second))
    first *= factor
    second *= factor
    norm = tl.sqrt(first * first + second * second) * inverse
    # A norm beyond the range of float64 is no sign of an Inf element.
    norm = tl.minimum(norm, 1.7976931348623157e308)
    return tl.where(is_scaled, -norm, norm)


@triton.jit
def _with_bad(norm, nans, infs):  # type: ignore[no-untyped-def]
    """Return NaN or Inf in place of a norm if an element is such."""
    norm = tl.where(infs > 0.0, float("inf"), norm)
    return tl.where(nans > 0.0, float("nan"), norm)


@triton.jit
def _norm_of_parts(parts, num_parts):  # type: ignore[no-untyped-def]
    """Return the norm of a tensor, float64, from that of its parts."""
    AT_ONCE: tl.constexpr = 512
    lanes = tl.arange(0, AT_ONCE)
    zero = tl.zeros((AT_ONCE,), tl.float64)
    highest, nans, infs = zero, zero, zero
    for begin in range(0, num_parts, AT_ONCE):
        place = begin + lanes
        norms = tl.load(parts + place, mask=place < num_parts, other=0.0)
        is_nan = norms != norms
        is_inf = norms == float("inf")
        nans += is_nan.to(tl.float64)
        infs += is_inf.to(tl.float64)
        highest = tl.maximum(highest, tl.where(is_nan | is_inf, 0.0, norms))
    highest_norm = tl.max(highest)
    factor, inverse = factor_of(highest_norm)
    scaled = tl.where(highest_norm > 0.0, 2.409919865102884e-181, 1.0)
    inverse = tl.where(highest_norm > 0.0, inverse, 2.409919865102884e-181)
    factor = tl.where(highest_norm > 0.0, factor, 1.0)
    squares = zero
    for begin in range(0, num_parts, AT_ONCE):
        place = begin + lanes
        norms = tl.load(parts + place, mask=place < num_parts, other=0.0)
        norms = tl.where((norms != norms) | (norms == float("inf")), 0.0, norms)
        norms = tl.where(norms < 0.0, norms * scaled, norms) * factor
        squares += norms * norms
    norm = tl.minimum(tl.sqrt(tl.sum(squares)) * inverse, 1.7976931348623157e308)
    return _with_bad(norm, tl.sum(nans), tl.sum(infs))


@triton.jit(do_not_specialize=["address", "numel", "parts"])  # type: ignore[untyped-decorator]
def norm_parts(  # type: ignore[no-untyped-def]
    address: tl.int64, numel: tl.int64, parts: tl.int64, FORMAT: tl.constexpr
):
    """Write the norm of what each program reads of one tensor.

    Args:
        address: Of its first element.
        numel: Its elements.
        parts: Address of (programs,) float64, written; 0 where there are no elements left.
        FORMAT: Of the elements: fp16, bf16, fp32 or fp64.
    """
    ITEM_BYTES: tl.constexpr = 8 if FORMAT == "fp64" else (4 if FORMAT == "fp32" else 2)
    PER_TILE: tl.constexpr = 8192 // ITEM_BYTES
    LONGEST: tl.constexpr = 96 * PER_TILE  # how far a sum in float32 may go
    address = address.to(tl.int64)
    numel = numel.to(tl.int64)
    num_tiles = (numel + PER_TILE - 1) // PER_TILE
    share = (num_tiles + tl.num_programs(0) - 1) // tl.num_programs(0) * PER_TILE
    begin = tl.minimum(tl.program_id(0) * share, numel)
    end = tl.minimum(begin + share, numel)
    norm = tl.full((), 0.0, tl.float64)
    nans, infs = norm, norm
    while begin < end:
        _, part, _, _, _, own_nans, own_infs = segment_statistics(
            address, begin, tl.minimum(begin + LONGEST, end), numel, FORMAT
        )
        norm = _joined(norm, part)
        nans += own_nans
        infs += own_infs
        begin += LONGEST
    place = parts.to(tl.int64) + tl.program_id(0) * 8
    tl.store(place.to(tl.pointer_type(tl.float64)), _with_bad(norm, nans, infs))


@triton.jit(do_not_specialize=["parts", "begins", "norms"])  # type: ignore[untyped-decorator]
def combine_norms(parts: tl.int64, begins: tl.int64, norms: tl.int64):  # type: ignore[no-untyped-def]
    """Write the norm of each place, a program for one.

    Args:
        parts: Address of all parts, float64.
        begins: Address of (places + 1,) int64, where the parts of each begin.
        norms: Address of (places,) float64, written.
    """
    own = begins.to(tl.int64).to(tl.pointer_type(tl.int64)) + tl.program_id(0)
    begin, end = tl.load(own), tl.load(own + 1)
    first = parts.to(tl.int64).to(tl.pointer_type(tl.float64)) + begin
    place = norms.to(tl.int64).to(tl.pointer_type(tl.float64)) + tl.program_id(0)
    tl.store(place, _norm_of_parts(first, (end - begin).to(tl.int32)))


@triton.jit(do_not_specialize=["kept", "other", "num_parts"])  # type: ignore[untyped-decorator]
def keep_larger(kept: tl.int64, other: tl.int64, num_parts: tl.int64):  # type: ignore[no-untyped-def]
    """Leave the larger of two norms in place of the first one's parts; NaN is larger than all.

    Args:
        kept: Address of (parts,) float64, written.
        other: Address of as many.
        num_parts: Their number.
    """
    AT_ONCE: tl.constexpr = 512
    first = kept.to(tl.int64).to(tl.pointer_type(tl.float64))
    second = other.to(tl.int64).to(tl.pointer_type(tl.float64))
    count = num_parts.to(tl.int32)
    one, another = _norm_of_parts(first, count), _norm_of_parts(second, count)
    largest = tl.where((one != one) | (another <= one), one, another)
    lanes = tl.arange(0, AT_ONCE)
    for begin in range(0, count, AT_ONCE):
        place = begin + lanes
        value = tl.where(place == 0, largest, 0.0)
        tl.store(first + place, value, mask=place < count)
