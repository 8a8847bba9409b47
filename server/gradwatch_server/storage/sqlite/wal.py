"""What the WAL beside an SQLite file has that was committed, read without SQLite."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_MAGIC: Final = {0x377F0682: "<", 0x377F0683: ">"}
"""By the order of the bytes in which its checksums were added up."""

_HEADER_BYTES: Final = 32
_FRAME_BYTES: Final = 24
_MASK: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class WALPage:
    """Where in the WAL a page is."""

    path: Path
    at: int
    num_bytes: int

    def read(self) -> bytes:
        """Return the page."""
        with self.path.open("rb") as file:
            file.seek(self.at)
            return file.read(self.num_bytes)


@dataclass(frozen=True, slots=True)
class WAL:
    """What was committed.

    Args:
        pages: The newest of each page.
        num_pages: Size of the file in pages after the last commit, 0 without any.
    """

    pages: Mapping[int, WALPage] = field(default_factory=dict)
    num_pages: int = 0


def read_wal(path: Path, page_bytes: int) -> WAL:
    """Return what a WAL has up to its first frame that is torn, damaged or of an earlier round."""
    try:
        data = memoryview(path.read_bytes())
    except OSError:
        return WAL()
    order = _MAGIC.get(int.from_bytes(data[:4], "big"))
    if len(data) < _HEADER_BYTES or order is None:
        return WAL()
    if int.from_bytes(data[8:12], "big") != page_bytes:
        return WAL()
    sums = _add((0, 0), data[:24], order)
    if sums != struct.unpack(">II", data[24:32]):
        return WAL()
    committed: dict[int, WALPage] = {}
    begun: dict[int, WALPage] = {}
    num_pages, salts = 0, data[16:24]
    each = _FRAME_BYTES + page_bytes
    for at in range(_HEADER_BYTES, len(data) - each + 1, each):
        head, page = data[at : at + _FRAME_BYTES], data[at + _FRAME_BYTES : at + each]
        sums = _add(_add(sums, head[:8], order), page, order)
        if head[8:16] != salts or sums != struct.unpack(">II", head[16:24]):
            break
        number, size = struct.unpack(">II", head[:8])
        begun[number] = WALPage(path, at + _FRAME_BYTES, page_bytes)
        if size:
            committed |= begun
            begun, num_pages = {}, size
    return WAL(committed, num_pages)


def _add(sums: tuple[int, int], data: memoryview, order: str) -> tuple[int, int]:
    """Return the checksums after some more bytes, of which there are a multiple of 8."""
    one, two = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for first, second in zip(words[::2], words[1::2], strict=True):
        one = (one + first + two) & _MASK
        two = (two + second + one) & _MASK
    return one, two
