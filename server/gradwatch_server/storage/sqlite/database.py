"""The SQLite file of a data directory: how it is set up, checked and replaced.

What its tables hold, the modules beside this one read and write, through the one connection that
writes. Whatever SQLite raises leaves here as a `StorageError`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from gradwatch_server.storage.checksums import text_of
from gradwatch_server.storage.rows import Loss, StorageError, StorageFault
from gradwatch_server.storage.schema import SCHEMA_VERSION, STORE_TABLES, statements
from gradwatch_server.storage.sqlite.files import (
    NEW,
    SIDE_FILES,
    has_our_header,
    move,
    num_bytes_of,
    quarantine,
    schema_in_header,
    side_of,
    take_up,
)
from gradwatch_server.storage.sqlite.lock import LOCK_NAME
from gradwatch_server.storage.sqlite.private_files import create_private
from gradwatch_server.storage.sqlite.reader import SQLiteReader, storage_errors
from gradwatch_server.storage.sqlite.salvage import Salvaged, salvage

logger = logging.getLogger(__name__)

PAGE_BYTES: Final = 4_096
"""A commit writes whole pages, and a small one touches five: of the row, of its index, of maps."""

WAL_BYTES: Final = 16 << 20
"""Size from which on the WAL is written back into the file."""

SALVAGE_WAL_PAGES: Final = 16
"""Pages of the WAL after which it is written back while a damaged file is taken over."""

CHECK_BYTES: Final = 64 << 20
"""A file up to this size is checked as a whole at each start; that takes 0.1 s. Of a larger one
only the alert events are checked: what is saved has checksums, and records are read one by one."""

FREE_SLACK_BYTES: Final = 32 << 20
"""Space in the file that is free and waits for new records rather than being given back."""

BUSY_S: Final = 5.0
"""Seconds that a connection waits for a lock; in WAL mode one is held only at an opening."""

_PRAGMAS: Final = (
    f"page_size={PAGE_BYTES}",  # before auto_vacuum, after which it is ignored
    "auto_vacuum=INCREMENTAL",
    "journal_mode=WAL",
    "synchronous=FULL",
    "journal_size_limit=67108864",
    "cache_size=-65536",
    "temp_store=MEMORY",
    "mmap_size=0",
    f"busy_timeout={round(BUSY_S * 1_000)}",
)

_TYPES: Final = {
    "key": "INTEGER PRIMARY KEY",
    "number": "INTEGER",
    "real": "REAL",
    "flag": "INTEGER",
    "text": "TEXT",
    "bytes": "BLOB",
}

_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ENXIO})


class FilePresence:
    """The files as they were when they were opened, by device and inode."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._files = {
            path: identity for path in paths if (identity := _identity(path)) is not None
        }

    def check(self) -> None:
        """Look whether each is where it was; that takes a microsecond each.

        Raises:
            StorageError: If one was removed, renamed or replaced.
        """
        for path, before in self._files.items():
            try:
                is_there = _identity(path) == before
            except OSError:  # nobody says that it is another one
                is_there = True
            if not is_there:
                msg = (
                    f"{path} was removed or replaced while it was in use: what would be written "
                    "now could not be found again, so nothing is taken in; put the data directory "
                    "back as it was, or choose another one with --data, and start again"
                )
                raise StorageError(msg, StorageFault.GONE)


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file, None if there is none.

    Raises:
        OSError: If that cannot be told.
    """
    try:
        status = path.stat()
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise
    return status.st_dev, status.st_ino


class SQLiteDatabase(SQLiteReader):
    """The connection that writes. One thread at a time may use it."""

    def __init__(
        self, path: Path | None, *, is_ours: bool = False, tables: str = STORE_TABLES
    ) -> None:
        """Open or create the file and check it; go on with what can be read of a damaged one.

        Args:
            path: The file; None for a database in memory, which lives as long as this object.
            is_ours: Whether there is known to have been a file of ours. What is not, such as a
                file of another kind, is left alone.
            tables: Its tables; see `statements`. What can be read of a damaged file is taken over
                where these are those of a store.

        Raises:
            StorageError: If it cannot be used, or another version of gradwatch wrote it.
        """
        super().__init__(None)
        self._path, self._tables = path, tables
        self.is_writing = False  # whether a transaction is open
        self._presence = FilePresence(())
        self.loss: Loss | None = None  # what could not be read of a file that was set aside
        # A clean stop removes the WAL; who reads then leaves an empty one.
        there = path is not None and take_up(path)
        has_wal = path is not None and there and num_bytes_of(side_of(path, "-wal")) > 0
        is_ours = path is not None and (is_ours or has_wal or has_our_header(path))
        try:
            if path is not None and there:
                _check_version(path)
            self._open(check=there)
        except StorageError as error:
            is_ours = is_ours and tables == STORE_TABLES
            if path is None or not is_ours or error.fault is not StorageFault.DAMAGED:
                raise
            self._rebuild(path, error)

    @property
    def name(self) -> str:
        """The path, for errors."""
        return str(self._path or ":memory:")

    def _open(self, *, check: bool) -> None:
        self._presence = FilePresence(())
        if self._path is not None:
            create_private(self._path)  # those beside it get its mode from SQLite
        with storage_errors():
            self._connection = sqlite3.connect(
                self._path or ":memory:", isolation_level=None, check_same_thread=False
            )
            self._connection.text_factory = text_of
        try:
            for pragma in _PRAGMAS:
                self.execute(f"PRAGMA {pragma}")
            # In pages, which keep the size that the file was made with.
            self.execute(f"PRAGMA wal_autocheckpoint={WAL_BYTES // self.number('page_size')}")
            if check:
                self._check()
            self._make_tables()
            self._record_presence()
        except BaseException:
            self.close()
            raise

    def _record_presence(self) -> None:
        if self._path is not None:
            self.number("user_version")  # a read, after which the WAL is there
            files = (self._path, side_of(self._path, "-wal"), self._path.with_name(LOCK_NAME))
            self._presence = FilePresence(files)

    def _check(self) -> None:
        """Look for damage in a time that does not grow with the file."""
        began_s = time.monotonic()
        whole = self.number("page_count") * self.number("page_size") <= CHECK_BYTES
        what = "1" if whole else "'alert_events'"
        (answer,) = self.row(f"PRAGMA quick_check({what})")
        if answer != "ok":
            raise StorageError(" ".join(str(answer).split())[:200], StorageFault.DAMAGED)
        logger.debug("checked: ok, %.2f s", time.monotonic() - began_s)

    def _make_tables(self) -> None:
        if self.number("user_version") == SCHEMA_VERSION:
            return
        with self.transaction():
            for statement in statements(self._tables, _TYPES):
                self.execute(statement)
            self.execute(f"PRAGMA user_version={SCHEMA_VERSION}")

    @property
    def is_open(self) -> bool:
        """State: true until it is closed."""
        return self._connection is not None

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, the least that a table or an index takes."""
        return self.number("page_size")

    def execute(self, sql: str, values: Any = ()) -> int:
        """Run one statement; return the number of rows that it changed."""
        with storage_errors():
            return self.connection.execute(sql, values).rowcount

    def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        """Run one statement for each row of parameters."""
        with storage_errors():
            self.connection.executemany(sql, rows)

    def number(self, pragma: str) -> int:
        (value,) = self.row(f"PRAGMA {pragma}")
        return int(value)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is written inside, all or none. One within another is part of that one."""
        if self.is_writing:
            yield
            return
        self.rollback()  # the last one could not even be rolled back
        self.is_writing = True
        try:
            self.execute("BEGIN IMMEDIATE")
            yield
            self.check_present()
            self.execute("COMMIT")
        except BaseException:
            self.rollback()
            raise
        finally:
            self.is_writing = False

    def check_present(self) -> None:
        """Raise a `StorageError` if the file is not any more where it was opened."""
        self._presence.check()

    def rollback(self) -> None:
        """Undo what is not committed, unless SQLite has done so itself, as on a full disk."""
        if self.connection.in_transaction:
            self.execute("ROLLBACK")

    @contextlib.contextmanager
    def reading(self) -> Iterator[SQLiteReader]:
        """Open a connection that sees one moment, from any thread; one in memory has no other."""
        if self._path is None:
            yield self
            return
        uri = uri_of(self._path)
        with (
            storage_errors(),
            contextlib.closing(sqlite3.connect(uri, uri=True, timeout=BUSY_S)) as connection,
        ):
            # Two writers are what the WAL-reset bug needs.
            connection.execute("PRAGMA query_only=1")
            connection.text_factory = text_of
            connection.execute("BEGIN")
            yield SQLiteReader(connection)

    def used_bytes(self) -> int:
        """Return the size of the pages that hold something."""
        pages = self.number("page_count") - self.number("freelist_count")
        return pages * self.number("page_size")

    def vacuum(self, num_bytes: int) -> bool:
        """Return free pages at the end of the file to the file system, unless they are few."""
        page_bytes = self.number("page_size")
        if self.number("freelist_count") * page_bytes <= FREE_SLACK_BYTES:
            return False
        with self.transaction():
            # One page each: Python takes one step of a statement that has no columns.
            for _ in range(max(num_bytes // page_bytes, 1)):
                self.execute("PRAGMA incremental_vacuum(1)")
        return True

    def reset(self, reason: object) -> None:
        """Keep the file under another name, and go on with what can be read of it."""
        self.close()
        if self._path is None:
            self._open(check=False)
        else:
            self._rebuild(self._path, reason)

    def _rebuild(self, path: Path, reason: object) -> None:
        """Make a new file of what can be read of the damaged one, and put it in its place.

        A process that is killed meanwhile leaves the damaged one where it is.
        """
        logger.error("the log %s is damaged (%s): what can be read is taken over", path, reason)
        try:
            salvaged, kept = self._put_in_place(path)
        except OSError as error:
            msg = f"it is damaged ({reason}), and no other can be put in its place: {error}"
            raise StorageError(msg) from error
        text = (
            f"the log {path} was damaged ({reason}) and is kept as {kept.name}; {salvaged.text}; "
            f"`sqlite3 {kept} .recover` may find more"
        )
        self.loss = Loss(text, salvaged.bad_rows)
        self._open(check=False)

    @staticmethod
    def _put_in_place(path: Path) -> tuple[Salvaged, Path]:
        new = side_of(path, NEW)
        for suffix in ("", *SIDE_FILES):
            side_of(new, suffix).unlink(missing_ok=True)
        fresh = SQLiteDatabase(new)
        try:
            # The disk has to hold both files: the WAL must not grow to the size of a third.
            fresh.execute(f"PRAGMA wal_autocheckpoint={SALVAGE_WAL_PAGES}")
            salvaged = salvage(path, fresh.connection)
        finally:
            fresh.close()
        kept = quarantine(path)
        move(new, path)
        return salvaged, kept

    def close(self) -> None:
        """Write the WAL back and close the file."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def _check_version(path: Path) -> None:
    """Refuse a file of another version before anything is written to it.

    Raises:
        StorageError: If it is of another version, of another program, or damaged.
    """
    version, num_tables = schema_in_header(path) or 0, 0
    if not version:  # a new file, what is only in the WAL yet, or a file of another program
        with (
            storage_errors(),
            contextlib.closing(sqlite3.connect(uri_of(path), uri=True)) as connection,
        ):
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (num_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version != SCHEMA_VERSION and (version or num_tables):
        msg = (
            f"it has schema version {version}, this gradwatch writes {SCHEMA_VERSION} and reads no "
            "other; nothing was changed: move the data directory away, or choose another with "
            "--data"
        )
        raise StorageError(msg, StorageFault.UNUSABLE)


def uri_of(path: Path) -> str:
    """Return what a connection is opened with that only reads."""
    return f"{path.resolve().as_uri()}?mode=ro"
