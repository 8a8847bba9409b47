"""The rows in the pages of an SQLite file, read without SQLite, which gives up where a page is bad.

Only the leaves of tables are looked at, each by itself: what is broken above them or beside them
costs nothing. The format is that of https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

from gradwatch_server.storage.sqlite.wal import read_wal

Value: TypeAlias = "int | float | str | bytes | None"

MAGIC: Final = b"SQLite format 3\0"
HEADER_BYTES: Final = 100

MAX_ROW_BYTES: Final = 64 << 20
"""More than any row of ours has: a length beyond it is a damaged one."""

_PENDING_BYTE: Final = 0x40000000
_LEAF_OF_TABLE: Final = 13
_TREE_TYPES: Final = frozenset({2, 5, 10, _LEAF_OF_TABLE})
_ROOT, _FREE, _TREE = 1, 2, 5
_INT_BYTES: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}

_NOT_READABLE: Final = (IndexError, ValueError, OverflowError, OSError)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of some table.

    Args:
        rowid: Its number in the table.
        values: Those of its columns, as they are stored; that of an integer primary key is None.
    """

    rowid: int
    values: tuple[Value, ...]


class PageFile:
    """A database file with the WAL beside it, if there is one; it is not changed.

    Attributes:
        num_pages: Pages that the file has, or should have.
        bad_pages: Those that could not be read so far.
        bad_rows: Rows in the others that could not be read so far.
    """

    def __init__(self, path: Path, page_bytes: int) -> None:
        """Open the file.

        Args:
            path: The file.
            page_bytes: Size of its pages, where its header does not say.

        Raises:
            OSError: If it cannot be opened.
        """
        self._file = path.open("rb", buffering=0)
        header = self._file.read(HEADER_BYTES)
        own = int.from_bytes(header[16:18], "big")
        own = 65_536 if own == 1 else own
        is_good = header.startswith(MAGIC) and own >= 512 and own & (own - 1) == 0
        self._page_bytes = own if is_good else page_bytes
        self._usable = self._page_bytes - (header[20] if is_good else 0)
        wal = read_wal(path.with_name(f"{path.name}-wal"), self._page_bytes)
        self._newer = wal.pages
        size = os.fstat(self._file.fileno()).st_size
        said = int.from_bytes(header[28:32], "big") if header[24:28] == header[92:96] else 0
        found = -(-size // self._page_bytes)
        # What a damaged header says is not to be believed without bounds.
        said = said if is_good and said < 4 * max(found, 1) else 0
        self.num_pages = wal.num_pages or max(found, said)
        self.bad_pages = 0
        self.bad_rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()

    def rows(self) -> Iterator[Row]:
        """Yield the rows of all tables, page by page."""
        for number in range(1, self.num_pages + 1):
            if self._is_map(number):
                continue
            try:
                use = self._use(number)
                if use == _FREE:
                    continue  # what is left in it was deleted
                page = self._page(number)
            except _NOT_READABLE:
                self.bad_pages += 1
                continue
            start = HEADER_BYTES if number == 1 else 0
            if page[start] == _LEAF_OF_TABLE and use in (_ROOT, _TREE, None):
                yield from self._leaf(page, start)
            elif page[start] not in _TREE_TYPES and (use in (_ROOT, _TREE) or number == 1):
                self.bad_pages += 1

    def _page(self, number: int) -> bytes:
        """Return a page.

        Raises:
            ValueError: If the file does not have it, or not all of it.
        """
        where = self._newer.get(number)
        if where is not None:
            page = where.read()
        else:
            at = (number - 1) * self._page_bytes
            page = os.pread(self._file.fileno(), self._page_bytes, at)
        if number < 1 or len(page) < self._page_bytes:
            msg = f"page {number} is not there"
            raise ValueError(msg)
        return page

    def _map_of(self, number: int) -> int:
        """Return the page of the pointer map that has the entry of a page."""
        each = self._usable // 5 + 1
        found = (number - 2) // each * each + 2
        return found + (found == _PENDING_BYTE // self._page_bytes + 1)

    def _is_map(self, number: int) -> bool:
        pending = _PENDING_BYTE // self._page_bytes + 1
        return number == pending or (number >= 2 and number == self._map_of(number))

    def _use(self, number: int) -> int | None:
        """Return what the pointer map says that a page is used for, None if it does not say."""
        if number == 1:
            return _ROOT
        map_page = self._map_of(number)
        try:
            use = self._page(map_page)[5 * (number - map_page - 1)]
        except _NOT_READABLE:
            return None
        return use if _ROOT <= use <= _TREE else None

    def _leaf(self, page: bytes, start: int) -> Iterator[Row]:
        num_cells = int.from_bytes(page[start + 3 : start + 5], "big")
        pointers = start + 8
        if pointers + 2 * num_cells > self._usable:
            self.bad_pages += 1
            return
        for own in range(pointers, pointers + 2 * num_cells, 2):
            try:
                row = self._cell(page, int.from_bytes(page[own : own + 2], "big"))
            except _NOT_READABLE:
                self.bad_rows += 1
            else:
                yield row

    def _cell(self, page: bytes, at: int) -> Row:
        num_bytes, at = _varint(page, at)
        rowid, at = _varint(page, at)
        if not 0 <= num_bytes <= MAX_ROW_BYTES:
            msg = f"a row of {num_bytes} bytes"
            raise ValueError(msg)
        local = self._local_bytes(num_bytes)
        payload = page[at : at + local]
        if local < num_bytes:
            first = int.from_bytes(page[at + local : at + local + 4], "big")
            payload += self._overflow(first, num_bytes - local)
        if len(payload) != num_bytes:
            msg = "the row goes beyond its page"
            raise ValueError(msg)
        return Row(rowid - (1 << 64) if rowid >> 63 else rowid, _values(payload))

    def _local_bytes(self, num_bytes: int) -> int:
        """Return how much of a row is in its own page."""
        if num_bytes <= self._usable - 35:
            return num_bytes
        least = (self._usable - 12) * 32 // 255 - 23
        found = least + (num_bytes - least) % (self._usable - 4)
        return found if found <= self._usable - 35 else least

    def _overflow(self, number: int, left: int) -> bytes:
        parts = []
        while left > 0:
            page = self._page(number)
            parts.append(page[4 : 4 + min(left, self._usable - 4)])
            left -= len(parts[-1])
            number = int.from_bytes(page[:4], "big")
        return b"".join(parts)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of 1 to 9 bytes, and where the next begins."""
    value = 0
    for place in range(at, at + 8):
        byte = data[place]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, place + 1
    return value << 8 | data[at + 8], at + 9


def _values(payload: bytes) -> tuple[Value, ...]:
    """Return the columns of a row.

    Raises:
        ValueError: If it is none.
    """
    end, at = _varint(payload, 0)
    kinds = []
    while at < end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    values = []
    at = end
    for kind in kinds:
        value, at = _value(payload, at, kind)
        values.append(value)
    if at != len(payload):
        msg = "the columns do not fill the row"
        raise ValueError(msg)
    return tuple(values)


def _value(payload: bytes, at: int, kind: int) -> tuple[Value, int]:
    if kind == 0:
        return None, at
    if kind in (8, 9):
        return kind - 8, at
    if kind in _INT_BYTES:
        end = at + _INT_BYTES[kind]
        return int.from_bytes(payload[at:end], "big", signed=True), end
    if kind < 12:
        msg = f"serial type {kind} is of no column of ours"
        raise ValueError(msg)
    end = at + (kind - 12) // 2
    own = payload[at:end]
    return (own.decode() if kind % 2 else own), end
