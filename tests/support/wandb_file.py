"""Reads what W&B wrote in offline mode: records of LevelDB's log format, in W&B's own protobuf."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

HEADER_BYTES: Final = 7
"""Of the file: `:W&B`, a magic number and a version."""

BLOCK_BYTES: Final = 32_768
_CHUNK: Final = struct.Struct("<IHB")  # checksum, length, kind
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def read_records(path: Path) -> Iterator[Any]:
    """Yield the records of a `.wandb` file."""
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]  # generated

    for data in _chunks(path.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        yield record


def _chunks(data: bytes) -> Iterator[bytes]:
    assert data.startswith(b":W&B"), data[:16]
    place, parts = HEADER_BYTES, b""
    while place + _CHUNK.size <= len(data):
        room = BLOCK_BYTES - place % BLOCK_BYTES
        if room < _CHUNK.size:  # the rest of a block is left empty
            place += room
            continue
        _, length, kind = _CHUNK.unpack_from(data, place)
        place += _CHUNK.size
        parts += data[place : place + length]
        place += length
        if kind in (_FULL, _LAST):
            yield parts
            parts = b""
