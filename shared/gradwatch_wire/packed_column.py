"""Packed arrays of numbers: one dtype code out of a closed table, and little-endian bytes.

Never a dtype string, a shape or a pickle from the wire.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Iterable
from typing import Final, NamedTuple

TYPECODES: Final[dict[str, str]] = {"<f4": "f", "<f8": "d", "<u4": "I", "<u8": "Q"}
"""Dtype code on the wire (numpy's spelling) to the typecode of `array.array`."""

ITEMSIZE: Final[dict[str, int]] = {"<f4": 4, "<f8": 8, "<u4": 4, "<u8": 8}


class Column(NamedTuple):
    """A column of numbers as it lies on the wire.

    Args:
        code: One of `<f4 <f8 <u4 <u8`.
        data: Little-endian items, `count * itemsize` bytes.
    """

    code: str
    size: int
    data: bytes

    @classmethod
    def of(cls, code: str, data: bytes) -> Column:
        """Return the column of bytes that were packed already.

        Raises:
            KeyError: If *code* is not in the table.
        """
        return cls(code, len(data) // ITEMSIZE[code], data)

    @classmethod
    def pack(cls, code: str, values: Iterable[float]) -> Column:
        """Pack Python numbers.

        Raises:
            KeyError: If *code* is not in the table.
            OverflowError: If a value does not fit an integer code.
        """
        items = array.array(TYPECODES[code], values)
        return cls(code, len(items), _swapped(items).tobytes())

    def unpack(self) -> list[float]:
        """Return the items as Python numbers. The aggregator uses `numpy.frombuffer` instead."""
        items: array.array[float] = array.array(TYPECODES[self.code])
        items.frombytes(self.data)
        return _swapped(items).tolist()


def _swapped(items: array.array[float]) -> array.array[float]:
    if sys.byteorder == "big":
        items.byteswap()
    return items
