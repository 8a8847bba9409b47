"""Arrays as plain data: `[code, shape, bytes]`, each bit of which comes back.

What a column holds mostly fits a narrower type than float64, or is one number over and over, such
as a count of zero.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

Packed: TypeAlias = "list[Any]"

SAME: Final = "="
"""Code of an array in which each item is the same float64."""

BITS: Final = "|b1"
"""Code of flags, eight in a byte."""

_SAMPLE: Final = 16
_NARROW: Final = ("<u4", "<f4")
_KNOWN: Final = frozenset({"<f8", "<i8", *_NARROW})


def pack(array: npt.NDArray[Any]) -> Packed:
    """Return an array of float64, float32, int64 or bool as plain data."""
    shape = list(array.shape)
    if array.dtype == np.bool_:
        return [BITS, shape, np.packbits(array).tobytes()]
    if array.dtype == np.int64:
        return ["<i8", shape, array.astype("<i8", copy=False).tobytes()]
    is_narrow = array.dtype == np.float32
    packed = np.ascontiguousarray(array, dtype="<f4" if is_narrow else "<f8")
    bits = packed.view(np.int32 if is_narrow else np.int64)
    if bits.size and (bits == bits.flat[0]).all():
        return [SAME, shape, packed.flat[0].astype("<f8").tobytes()]
    return ["<f4", shape, packed.tobytes()] if is_narrow else _pack_numbers(packed, shape)


def _pack_numbers(array: npt.NDArray[Any], shape: list[int]) -> Packed:
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
