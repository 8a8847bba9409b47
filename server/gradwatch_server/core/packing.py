"""Arrays as plain data: `[code, shape, bytes]`, each bit of which comes back; and large integers.

What a column holds mostly fits a narrower type than float64, or is one number over and over, such
as a count of zero.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from gradwatch_server.core.arrays import BoolArray, FloatArray

Packed: TypeAlias = "list[Any]"

SAME: Final = "="
"""Code of an array in which each item is the same float64."""

BITS: Final = "|b1"
"""Code of flags, eight in a byte."""

_SAMPLE: Final = 16
_NARROW: Final = ("<u4", "<f4")
_KNOWN: Final = frozenset({"<f8", "<i8", *_NARROW})
_INT64: Final = 1 << 63


def pack(array: npt.NDArray[Any]) -> Packed:
    """Return an array of float64, int64 or bool as plain data."""
    shape = list(array.shape)
    if array.dtype == np.bool_:
        return [BITS, shape, np.packbits(array).tobytes()]
    if array.dtype == np.int64:
        return ["<i8", shape, array.astype("<i8", copy=False).tobytes()]
    return _pack_numbers(np.ascontiguousarray(array, dtype="<f8"), shape)


def _pack_numbers(array: FloatArray, shape: list[int]) -> Packed:
    bits = array.view(np.int64)
    if bits.size and (bits == bits.flat[0]).all():
        return [SAME, shape, array.flat[0].tobytes()]
    with np.errstate(over="ignore", invalid="ignore"):
        for code in _NARROW:
            # Most of what does not fit shows it at once.
            for part in (array.ravel()[:_SAMPLE], array):
                narrow = part.astype(code)
                if (narrow.astype("<f8").view(np.int64) != part.view(np.int64)).any():
                    break
            else:
                return [code, shape, narrow.tobytes()]
    return ["<f8", shape, array.tobytes()]


def unpack(packed: Packed) -> npt.NDArray[Any]:
    """Return what `pack` was given, read-only; a narrow type stands for the same float64.

    Raises:
        ValueError: If it is no such data.
    """
    code, shape, data = packed
    if code == BITS:
        flags = np.unpackbits(np.frombuffer(data, np.uint8), count=int(np.prod(shape)))
        return flags.astype(np.bool_).reshape(shape)
    if code == SAME:
        return np.broadcast_to(np.frombuffer(data, "<f8", 1)[0], tuple(shape))
    if code not in _KNOWN:
        msg = f"array code {code!a} is none of {sorted(_KNOWN)}, {SAME!r}, {BITS!r}"
        raise ValueError(msg)
    return np.frombuffer(data, code).reshape(shape)


def unpack_numbers(packed: Packed) -> FloatArray:
    """Return an array of float64, read-only."""
    array: FloatArray = unpack(packed).astype(np.float64)
    array.flags.writeable = False
    return array


def unpack_flags(packed: Packed) -> BoolArray:
    """Return an array of flags, read-only."""
    array: BoolArray = unpack(packed).astype(np.bool_, copy=False)
    array.flags.writeable = False
    return array


def pack_integer(number: int) -> int | str:
    """Return what msgpack can encode, and `int` reads: sums of counts that clients claim grow."""
    return number if number < _INT64 else str(number)
