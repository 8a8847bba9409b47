"""Checksums of rows: SQLite has none, and a flipped bit in a number looks like another number."""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

_SAVED_BYTES: Final = 4


def of_row(run: str, is_head: int, first: int, last: int, received_ns: int, body: bytes) -> int:
    head = struct.pack("<qqqq", is_head, first, last, received_ns)
    return zlib.crc32(body, zlib.crc32(head + run.encode("utf-8", "surrogatepass")))


def of_event(alert_id: str, change: str, run: str, body: str) -> int:
    return zlib.crc32("\0".join((alert_id, change, run, body)).encode("utf-8", "surrogatepass"))


class ChecksumError(Exception):
    """A row is not what was written."""


def check_row(*row: Any) -> None:
    """Compare the columns of a row of the log with its checksum, which is the last of them.

    Raises:
        ChecksumError: If it is not what was written.
        Exception: Of other kinds if not even its types are right.
    """
    if of_row(*row[:-1]) != row[-1]:
        msg = "its checksum is another one"
        raise ChecksumError(msg)


def is_good_row(*row: Any) -> bool:
    """Tell the same without an error."""
    try:
        check_row(*row)
    except (ChecksumError, TypeError, AttributeError, struct.error):
        return False
    return True


def is_good_event(alert_id: str, change: str, run: str, body: str, checksum: object) -> bool:
    try:
        return of_event(alert_id, change, run, body) == checksum
    except TypeError:
        return False


def is_good_state(body: bytes) -> bool:
    return zlib.crc32(body[_SAVED_BYTES:]) == int.from_bytes(body[:_SAVED_BYTES], "little")


def text_of(stored: bytes) -> str:
    """Return a text also where a damaged row has none: its checksum tells, not a failed query."""
    return stored.decode("utf-8", "replace")
