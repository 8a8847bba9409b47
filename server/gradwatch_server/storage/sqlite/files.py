"""The file of a database and those beside it: how they are told, renamed and set aside."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from gradwatch_server.storage.sqlite.schema import SCHEMA_VERSION

MAGIC: Final = b"SQLite format 3\0"
HEADER_BYTES: Final = 100

NEW: Final = ".new"
"""What a file is called until all is in it that could be read of a damaged one."""

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
    """Tell whether a file begins as those do that versions up to this one wrote."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except OSError:
        return False
    version, incremental = header[60:64], header[64:68]
    return (
        header.startswith(MAGIC)
        and 1 <= int.from_bytes(version, "big") <= SCHEMA_VERSION
        and incremental == b"\0\0\0\1"
    )


def side_of(path: Path, suffix: str) -> Path:
    """Return a file beside one, whose name it has with a suffix."""
    return path.with_name(path.name + suffix)


def num_bytes_of(path: Path) -> int:
    """Return the size of a file, 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
