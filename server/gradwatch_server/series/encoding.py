"""Chunks as bytes: arrays in blocks of some items, each with a checksum, so that one is read alone.

Every bit of a number comes back: `core.packing` chooses the narrowest type that holds it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import msgpack
import numpy as np
import numpy.typing as npt

from gradwatch_server.core.arrays import IndexArray
from gradwatch_server.core.packing import SAME, pack, unpack
from gradwatch_server.series.buckets import COUNTS, STATS, Buckets
from gradwatch_server.series.items import ItemKind
from gradwatch_server.series.layers import KnownLayers
from gradwatch_server.series.rows import Rows

BLOCK_ITEMS: Final = 32
"""Items that are read together: a block of 64 rows in float32 is 8 kB."""

BLOCK_VALUES: Final = 64 * BLOCK_ITEMS
"""Of fewer rows so many more items are in a block: a block takes 15 µs to write, however small."""

HEADER_BYTES: Final = 4_096
"""What is read first: the header of a body of up to some 60,000 items fits."""

_PREFIX_BYTES: Final = 8
_CHECKSUM_BYTES: Final = 4

Read: TypeAlias = Callable[[int, int], bytes]
"""Returns so many bytes of a body from an offset on."""

Arrays: TypeAlias = "list[npt.NDArray[Any]]"


class DamagedChunkError(Exception):
    """Stored bytes are not those that were written."""


def encode_plain(plain: Any) -> bytes:
    """Return plain data with a checksum."""
    body: bytes = msgpack.packb(plain)
    return zlib.crc32(body).to_bytes(_CHECKSUM_BYTES, "little") + body


def decode_plain(data: bytes) -> Any:
    """Return what `encode_plain` was given.

    Raises:
        DamagedChunkError: If it was something else.
    """
    body = data[_CHECKSUM_BYTES:]
    if zlib.crc32(body) != int.from_bytes(data[:_CHECKSUM_BYTES], "little"):
        msg = f"{len(data)} bytes have another checksum"
        raise DamagedChunkError(msg)
    return msgpack.unpackb(body, strict_map_key=False)


def encode_rows(rows: Rows) -> bytes:
    """Return the body of a table of rows."""
    return encode_blocks([rows.values, rows.known])


def decode_rows(head: Sequence[npt.NDArray[Any]], read: Read, items: IndexArray | None) -> Rows:
    """Return rows of some items, of all without.

    Args:
        head: Steps, times and skips, as `decode_arrays` gives them.
        read: Reads the body.
        items: Which items; those that the body does not have are not known.
    """
    steps, times_ns, skipped = head[:3]
    values, known = decode_blocks(read, items, (np.nan, False))
    return Rows(steps, times_ns, skipped, values, known)


def split_buckets(buckets: Buckets) -> list[bytes]:
    """Return a table of buckets in blocks of `BLOCK_ITEMS` items; their means are rounded."""
    own = rounded(buckets)
    return split_blocks([*own.stats, *own.counts.astype(np.float64)])


def decode_buckets(
    head: Sequence[npt.NDArray[Any]], width: int, read: Read, items: IndexArray | None
) -> Buckets:
    """Return buckets of some items, of all without; *head* has their numbers and times."""
    numbers, times_ns = head[:2]
    fills = (*[np.nan] * len(STATS), *[0.0] * len(COUNTS))
    arrays = decode_blocks(read, items, fills)
    stats = np.stack(arrays[: len(STATS)])
    counts = np.stack(arrays[len(STATS) :]).astype(np.int64)
    return Buckets(width, numbers, times_ns, stats, counts)


def rounded(buckets: Buckets) -> Buckets:
    """Return buckets whose means take half the room: float32 where that holds their size."""
    low, high, mean, last = buckets.stats
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = mean.astype(np.float32).astype(np.float64)
    fits = np.isfinite(narrow) & ((abs(narrow) >= _SMALLEST_NORMAL) | (mean == 0.0))
    means = np.where(fits, np.clip(narrow, low, high), mean)
    stats = np.stack([low, high, means, last])
    return Buckets(buckets.width, buckets.numbers, buckets.times_ns, stats, buckets.counts)


_SMALLEST_NORMAL: Final = float(np.finfo(np.float32).tiny)


def encode_arrays(arrays: Sequence[npt.NDArray[Any]]) -> bytes:
    """Return what all tables of a chunk have in common, (rows,) each."""
    return encode_plain([pack(own) for own in arrays])


def decode_arrays(data: bytes) -> Arrays:
    """Return what `encode_arrays` was given.

    Raises:
        DamagedChunkError: If it was something else.
    """
    return [unpack(own) for own in decode_plain(data)]


def encode_layers(layers: KnownLayers) -> bytes:
    """Return the layers of an attempt."""
    groups = [[name, pack(members)] for name, members in layers.groups.items()]
    numel = [float(own) for own in layers.numel]  # 2^64 is more than msgpack can encode
    later = [layers.dtypes, layers.shards, [[kind, own] for kind, own in layers.items.items()]]
    return encode_plain([layers.names, numel, groups, layers.is_ordered, *later])


def decode_layers(data: bytes) -> KnownLayers:
    """Return what `encode_layers` was given.

    Raises:
        DamagedChunkError: If it was something else.
    """
    names, numel, groups, is_ordered, *later = decode_plain(data)
    dtypes, shards, items, *_ = later or ((), (), ())  # what was written first has none
    sizes = tuple(int(own) for own in numel)
    members = {name: unpack(own).astype(np.bool_) for name, own in groups}
    return KnownLayers(
        tuple(names),
        sizes,
        members,
        bool(is_ordered),
        tuple(dtypes),
        tuple(shards),
        {ItemKind(kind): tuple(own) for kind, own in items},
    )


def encode_blocks(arrays: Sequence[npt.NDArray[Any]]) -> bytes:
    """Return the body of arrays of (rows, items)."""
    rows, items = arrays[0].shape
    size = max(BLOCK_ITEMS, BLOCK_VALUES // max(rows, 1))
    return join_blocks(items, split_blocks(arrays, size), size)


def split_blocks(arrays: Sequence[npt.NDArray[Any]], size: int = BLOCK_ITEMS) -> list[bytes]:
    """Return arrays of (rows, items) in blocks of *size* items."""
    return [
        encode_plain([_pack(array[:, first : first + size]) for array in arrays])
        for first in range(0, arrays[0].shape[1], size)
    ]


def join_blocks(items: int, blocks: Sequence[bytes], size: int = BLOCK_ITEMS) -> bytes:
    """Return the body that consists of these blocks of *size* items, of *items* in all."""
    header = encode_plain([items, size, [len(block) for block in blocks]])
    return b"".join([len(header).to_bytes(_PREFIX_BYTES, "little"), header, *blocks])


def decode_blocks(read: Read, items: IndexArray | None, fills: Sequence[float]) -> Arrays:
    """Return the arrays of some items, of all without; *fills* stand for items that are not there.

    Raises:
        DamagedChunkError: If something else was written.
    """
    start = read(0, HEADER_BYTES)
    length = int.from_bytes(start[:_PREFIX_BYTES], "little")
    begin = _PREFIX_BYTES + length
    if begin > len(start):
        start += read(len(start), begin - len(start))
    num_items, size, lengths = decode_plain(start[_PREFIX_BYTES:begin])
    wanted = np.arange(num_items) if items is None else items
    own_block = np.where(wanted < num_items, wanted // size, -1)
    blocks = sorted(set(own_block.tolist()) - {-1})
    made: Arrays = []
    # Of none of its items some block is read all the same: it says how many rows there are.
    for block in blocks or range(bool(lengths)):
        packed = decode_plain(read(begin + sum(lengths[:block]), lengths[block]))
        if not made:
            made = [_filled(packed[0][1][0], len(wanted), fill) for fill in fills]
        places = np.flatnonzero(own_block == block)
        columns = wanted[places] % size
        for whole, own in zip(made, packed, strict=True):
            whole[:, places] = _columns(own, columns)
    return made or [_filled(0, len(wanted), fill) for fill in fills]


def _columns(packed: Any, columns: IndexArray) -> Any:
    """Return some columns of an array; one number where all of it is the same."""
    if packed is None:
        return True
    if packed[0] == SAME:
        return np.frombuffer(packed[2], "<f8", 1)[0]
    return unpack(packed)[:, columns]


def _filled(rows: int, items: int, fill: float) -> npt.NDArray[Any]:
    return np.full((rows, items), fill, dtype=np.bool_ if isinstance(fill, bool) else np.float64)


def _pack(array: npt.NDArray[Any]) -> Any:
    """Return an array as plain data; flags that are all set, which nearly all are, as None."""
    return None if array.dtype == np.bool_ and array.all() else pack(array)
