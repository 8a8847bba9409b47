"""Blocks as bytes: a head that says where everything is, and a body of groups of items.

A group is one zstd frame with a checksum, so that one item is read with few others.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgpack
import numpy as np
import numpy.typing as npt
import zstandard

from gradwatch_server.core.arrays import FloatArray, IndexArray
from gradwatch_server.core.packing import Packed, pack, unpack
from gradwatch_server.curves.buckets import COUNTS, STATS, Buckets
from gradwatch_server.curves.facts import Read
from gradwatch_server.curves.rows import Rows

GROUP_ITEMS: Final = 128
"""Items that are read together: 64 rows of them in float32 are 32 kB."""

MAX_BYTES: Final = 64 << 20
"""A group or a head that claims more is damaged."""

_CHECKSUM_BYTES: Final = 4
_SIZES: Final = {"<u4": 4, "<f4": 4, "<f8": 8, "<i8": 8}
_FLOAT32: Final = np.finfo(np.float32)
_FIRST_INEXACT: Final = 2.0**24
"""Float32 has all whole numbers below this one, float64 those below `_MAX_COUNT`."""

_MAX_COUNT: Final = 2.0**53

Arrays: TypeAlias = "list[npt.NDArray[Any]]"


class DamagedBlockError(Exception):
    """Stored bytes are not those that were written."""


class TablePlace(NamedTuple):
    """Place of a table in a body.

    Args:
        lengths: Bytes of each group, none where each array is one number over and over.
        same: The number of each array that is one number over and over.
    """

    begin: int = 0
    num_items: int = 0
    lengths: Sequence[int] = ()
    same: Sequence[float] = ()


class BlockHead(NamedTuple):
    """Head of a block.

    Args:
        arrays: (entries,) each: steps, times, skips and entries of the log of rows; numbers and
            times of buckets.
    """

    arrays: Arrays
    tables: Mapping[str, TablePlace]


def encode_plain(plain: Any) -> bytes:
    packed = zstandard.ZstdCompressor(level=1).compress(msgpack.packb(plain))
    return zlib.crc32(packed).to_bytes(_CHECKSUM_BYTES, "little") + packed


def decode_plain(data: bytes) -> Any:
    """Return what `encode_plain` was given.

    Raises:
        DamagedBlockError: If it was something else.
    """
    packed = data[_CHECKSUM_BYTES:]
    if zlib.crc32(packed) != int.from_bytes(data[:_CHECKSUM_BYTES], "little"):
        msg = f"{len(data)} bytes have another checksum"
        raise DamagedBlockError(msg)
    return _plain(packed)


def _plain(packed: bytes) -> Any:
    try:
        data = zstandard.ZstdDecompressor().decompress(packed, max_output_size=MAX_BYTES)
        return msgpack.unpackb(data, strict_map_key=False)
    except (zstandard.ZstdError, ValueError, msgpack.UnpackException) as error:
        msg = f"{len(packed)} bytes cannot be read: {error}"
        raise DamagedBlockError(msg) from error


def encode_block(
    arrays: Sequence[npt.NDArray[Any]], tables: Iterable[tuple[str, Sequence[npt.NDArray[Any]]]]
) -> tuple[bytes, bytes]:
    """Return head and body of a block.

    Args:
        tables: Names and their arrays of (entries, items), all of the same items.
    """
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
    body: list[bytes] = []
    places: list[tuple[str, int, list[int], list[float]]] = []
    for name, arrays_ in tables:
        num_items, groups = arrays_[0].shape[1], list[bytes]()
        same = [number for array in arrays_ if (number := _same(array)) is not None]
        if len(same) < len(arrays_):
            same.clear()
            for first in range(0, num_items, GROUP_ITEMS):
                group = [_encode(array[:, first : first + GROUP_ITEMS]) for array in arrays_]
                groups.append(compressor.compress(msgpack.packb(group)))
        places.append((name, num_items, [len(group) for group in groups], same))
        body += groups
    return encode_plain([[pack(array) for array in arrays], places]), b"".join(body)


def decode_head(data: bytes) -> BlockHead:
    """Return the head of a block.

    Raises:
        DamagedBlockError: If it is not what was written.
    """
    arrays, places = decode_plain(data)
    begin = 0
    tables: dict[str, TablePlace] = {}
    for name, num_items, lengths, same in places:
        tables[name] = TablePlace(begin, num_items, lengths, same)
        begin += sum(lengths)
    return BlockHead([unpack(array) for array in arrays], tables)


def decode_rows(head: BlockHead, table: str, read: Read, items: IndexArray | None = None) -> Rows:
    """Return the rows of some items of a table, of all without; others are not known.

    Raises:
        DamagedBlockError: If they are not what was written.
    """
    values, known = _decode_table(head, table, read, items, (np.nan, False))
    steps, times_ns, skipped = head.arrays[:3]
    return Rows(steps, times_ns, skipped, values, known)


def decode_buckets(
    head: BlockHead, width: int, table: str, read: Read, items: IndexArray | None = None
) -> Buckets:
    """Return the buckets of some items of a table, of all without; others have no steps.

    Raises:
        DamagedBlockError: If they are not what was written.
    """
    fills = (*[np.nan] * len(STATS), *[0.0] * len(COUNTS))
    arrays = _decode_table(head, table, read, items, fills)
    counts = np.stack(arrays[len(STATS) :]).astype(np.int64)
    numbers, times_ns = head.arrays
    return Buckets(width, numbers, times_ns, np.stack(arrays[: len(STATS)]), counts)


def _decode_table(
    head: BlockHead, table: str, read: Read, items: IndexArray | None, fills: Sequence[float]
) -> Arrays:
    entries = len(head.arrays[0])
    place = head.tables.get(table, TablePlace())
    wanted = np.arange(place.num_items) if items is None else items
    made: Arrays = [_filled(entries, len(wanted), fill) for fill in fills]
    for whole, number in zip(made, place.same, strict=False):
        whole[:, wanted < place.num_items] = number
    if not place.lengths:
        return made
    group_of = np.where(wanted < place.num_items, wanted // GROUP_ITEMS, -1)
    for group in sorted(set(group_of.tolist()) - {-1}):
        packed = read(place.begin + sum(place.lengths[:group]), place.lengths[group])
        columns = np.flatnonzero(group_of == group)
        try:
            for whole, part in zip(made, _plain(packed), strict=True):
                whole[:, columns] = _decode(part)[:, wanted[columns] % GROUP_ITEMS]
        except (ValueError, TypeError, IndexError) as error:
            msg = f"a group of {table} cannot be read: {error}"
            raise DamagedBlockError(msg) from error
    return made


def _filled(rows: int, items: int, fill: float) -> npt.NDArray[Any]:
    return np.full((rows, items), fill, dtype=np.bool_ if isinstance(fill, bool) else np.float64)


def _same(array: npt.NDArray[Any]) -> float | None:
    """Return the number that all items of an array are, None if there is none."""
    if not array.size:
        return 0.0
    first = array.flat[0]
    for part in (array[0], array):  # where they differ, the first row mostly shows it
        if not (np.isnan(part) if np.isnan(first) else part == first).all():
            return None
    return float(first)


def _encode(array: npt.NDArray[Any]) -> Packed:
    """Return numbers or flags of (entries, items) as plain data, an item's numbers side by side.

    The bytes of all numbers lie by their place: those of signs and exponents are much the same.
    """
    code, shape, data = pack(array.T)
    if code in _SIZES:
        data = np.frombuffer(data, np.uint8).reshape(-1, _SIZES[code]).T.tobytes()
    return [code, shape, data]


def _decode(packed: Packed) -> npt.NDArray[Any]:
    """Return what `_encode` was given, (entries, items)."""
    code, shape, data = packed
    if code in _SIZES:
        data = np.frombuffer(data, np.uint8).reshape(_SIZES[code], -1).T.tobytes()
    return unpack([code, shape, data]).T


def narrowed(values: FloatArray) -> npt.NDArray[np.floating[Any]]:
    """Return numbers in float32, as they are if one would overflow, vanish, or be no count.

    A finite number stays finite and within 6e-8 of itself, one that is not zero is not zero, and
    whole numbers stay what they are.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = values.astype(np.float32)
        size = np.abs(narrow)
        large, small = size >= _FIRST_INEXACT, size < _FLOAT32.tiny
    is_lost = small.any() and values[small].any()
    if not is_lost and large.any():
        values_ = values[large]
        differ = narrow[large] != values_
        is_count = (np.abs(values_) < _MAX_COUNT) & (np.rint(values_) == values_)
        is_lost = (differ & (np.isinf(narrow[large]) | is_count)).any()
    return values if is_lost else narrow
