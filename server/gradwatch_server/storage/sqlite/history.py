"""The logs of a data directory, read beside the aggregator that writes them, or without it."""

from __future__ import annotations

import heapq
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Final

from gradwatch_server.storage.checksums import is_good_row, text_of
from gradwatch_server.storage.encoding import EncodedEntry, NumberedEntry, unpack_entries
from gradwatch_server.storage.rows import StorageError, StorageFault
from gradwatch_server.storage.schema import SCHEMA_VERSION
from gradwatch_server.storage.sqlite.database import BUSY_S, uri_of
from gradwatch_server.storage.sqlite.files import num_bytes_of, side_of
from gradwatch_server.storage.sqlite.reader import storage_errors
from gradwatch_server.storage.sqlite.store import DATABASE_NAME

logger = logging.getLogger(__name__)

PAGE_ROWS: Final = 50
"""Rows read at once: the writer's WAL does not shrink during a read."""

_SELECT: Final = (
    "SELECT run, is_head, first, last, received_ns, body, checksum FROM log"
    " WHERE run = ? AND is_head = ? AND last > ? ORDER BY last LIMIT ?"
)


def read_log(directory: Path, run: str | None = None) -> Iterator[EncodedEntry]:
    """Yield the entries of a run, or of one run after the other, oldest first.

    A damaged row is logged and passed over.

    Raises:
        StorageError: If there is no log, or it cannot be read.
    """
    path = directory / DATABASE_NAME
    if not path.is_file():
        msg = f"there is no {path}; give the aggregator's data directory with --data"
        raise StorageError(msg, StorageFault.UNUSABLE)
    try:
        with storage_errors(), closing(open_to_read(path)) as connection:
            runs = connection.execute("SELECT run FROM log GROUP BY run ORDER BY min(id)")
            names = [name for (name,) in runs] if run is None else [run]
            for name in names:
                parts = (_read(connection, name, is_head) for is_head in (1, 0))
                yield from (part for _, part in heapq.merge(*parts, key=itemgetter(0)))
    except StorageError as error:
        msg = f"cannot read {path}: {error}"
        if error.fault is StorageFault.DAMAGED:
            msg += "; `gradwatch serve` keeps what can be read of a damaged file of its own"
        raise StorageError(msg, error.fault) from error


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a connection that cannot write, and see whether the file is one to be read.

    Raises:
        StorageError: If it is not of the version that this gradwatch writes.
        sqlite3.Error: If it cannot be read.
    """
    try:
        connection, version = _connect(uri_of(path))
    except sqlite3.OperationalError:  # in a directory where nothing can be made beside the file
        if num_bytes_of(side_of(path, "-wal")):
            raise
        connection, version = _connect(f"{uri_of(path)}&immutable=1")
    if version != SCHEMA_VERSION:
        connection.close()
        msg = f"it has schema version {version}, this gradwatch reads {SCHEMA_VERSION}"
        msg = f"{msg}; use the gradwatch that serves it" if version else "it is none of gradwatch's"
        raise StorageError(msg, StorageFault.UNUSABLE)
    return connection


def _connect(uri: str) -> tuple[sqlite3.Connection, int]:
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S)
    connection.text_factory = text_of
    try:
        connection.execute("PRAGMA query_only=1")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection, version


def _read(connection: sqlite3.Connection, run: str, is_head: int) -> Iterator[NumberedEntry]:
    after = 0
    while page := connection.execute(_SELECT, (run, is_head, after, PAGE_ROWS)).fetchall():
        for row in page:
            first, last = row[2:4]
            if (
                not isinstance(last, int) or last <= after
            ):  # a torn page, after which the reading would begin again for ever
                msg = "rows of its log are out of order"
                raise StorageError(msg, StorageFault.DAMAGED)
            after = last
            if is_good_row(*row):
                yield from unpack_entries(row[5])
            else:
                logger.warning("entries %s to %s of run %a are damaged", first, last, run)
