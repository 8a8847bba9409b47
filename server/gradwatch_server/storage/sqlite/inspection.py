"""Inspection of a data directory from outside, without opening its database.

Nothing is written, and nothing is made: it may be that of an aggregator that runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from gradwatch_server.storage.inspection import StoreInspection
from gradwatch_server.storage.schema import SCHEMA_VERSION
from gradwatch_server.storage.sqlite.files import (
    has_our_header,
    num_bytes_of,
    schema_in_header,
    side_of,
)
from gradwatch_server.storage.sqlite.filesystem import network_type
from gradwatch_server.storage.sqlite.lock import LOCK_NAME, READ_BYTES, holder_in
from gradwatch_server.storage.sqlite.store import DATABASE_NAME


def inspect(directory: Path) -> StoreInspection:
    """Look at a data directory, which may be missing.

    Raises:
        OSError: If it may not be looked at.
    """
    path = directory / DATABASE_NAME
    is_there = path.exists()
    (owner, boot), is_held = _lock_of(directory / LOCK_NAME)
    wal_bytes = num_bytes_of(side_of(path, "-wal"))
    return StoreInspection(
        network_type=network_type(directory),
        holder=(owner or "unknown") if is_held else None,
        boot=(boot or None) if is_held else None,
        used_bytes=num_bytes_of(path) + wal_bytes,
        schema=schema_in_header(path),
        newest_schema=SCHEMA_VERSION,
        is_ours=wal_bytes > 0 or has_our_header(path),  # the head of a new one is in the WAL
        written_ns=path.stat().st_mtime_ns if is_there else None,
    )


def _lock_of(path: Path) -> tuple[tuple[str, str], bool]:
    """Return what a lock says of its holder, nothing without one, and whether it is held.

    It is shared for a moment to find that out: an aggregator that starts in it is turned away.
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ("", ""), False
    try:
        holder = holder_in(os.read(number, READ_BYTES))
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return holder, False
        return holder, True
    finally:
        os.close(number)
