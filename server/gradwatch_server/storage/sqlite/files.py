"""The file of a database and those beside it: how they are told, renamed and set aside."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from gradwatch_server.storage.schema import SCHEMA_VERSION

_MAGIC: Final = b"SQLite format 3\0"
_HEADER_BYTES: Final = 100

NEW: Final = ".new"
"""Suffix of a file that is being filled with the readable rows of a damaged one."""

SIDE_FILES: Final = ("-wal", "-shm", "-journal")


def quarantine(path: Path) -> Path:
    """Rename a damaged file, and those beside it, so that a new one can take its place.

    Returns:
        What it is called now.
    """
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    kept = path.with_name(f"{path.name}.damaged-{stamp}")
    number = 0
    while kept.exists():
        number += 1
        kept = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    move(path, kept)
    return kept


def move(path: Path, to: Path) -> None:
    """Rename a file with those beside it; itself last, for it is what one looks for."""
    for suffix in (*SIDE_FILES, ""):
        with contextlib.suppress(FileNotFoundError):
            side_of(path, suffix).rename(side_of(to, suffix))


def take_up(path: Path) -> bool:
    """Tell whether there is a file; one whose process was killed while it was put there is."""
    new = side_of(path, NEW)
    if not path.exists() and new.exists():
        move(new, path)
    return path.exists()


def has_our_header(path: Path) -> bool:
    """Tell whether a file begins as those do that this version writes."""
    is_incremental = _header_of(path)[64:68] == b"\0\0\0\1"
    return schema_in_header(path) == SCHEMA_VERSION and is_incremental


def schema_in_header(path: Path) -> int | None:
    """Return the version in the head of a file; None if there is none yet: it may be in the WAL."""
    header = _header_of(path)
    version = int.from_bytes(header[60:64], "big") if header.startswith(_MAGIC) else 0
    return version or None


def _header_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEADER_BYTES)
    except OSError:  # whoever opens it says why
        return b""


def side_of(path: Path, suffix: str) -> Path:
    """Return a file beside one, whose name it has with a suffix."""
    return path.with_name(path.name + suffix)


def num_bytes_of(path: Path) -> int:
    """Return the size of a file, 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
