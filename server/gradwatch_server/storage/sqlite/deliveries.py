"""The delivery log in one SQLite file of the data directory, beside the log."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from gradwatch_server.storage.deliveries import (
    GET_ENTRIES,
    GET_GROUPS,
    GET_TARGET,
    SavedTarget,
    TargetChange,
    changing,
    forgetting,
    from_rows,
)
from gradwatch_server.storage.rows import StorageError, StorageFault
from gradwatch_server.storage.sqlite.files import quarantine
from gradwatch_server.storage.sqlite.private_files import create_private, make_private
from gradwatch_server.storage.sqlite.reader import storage_errors

logger = logging.getLogger(__name__)

DELIVERIES_NAME: Final = "notifications.sqlite"

BUSY_S: Final = 5.0
"""How long it waits for who looks into the file from outside."""

VERSION: Final = 3

_PRAGMAS: Final = (
    "journal_mode=WAL",
    # A process that is killed loses nothing by it; a power failure may cost the newest commits,
    # and what they say is then done once more.
    "synchronous=NORMAL",
    "journal_size_limit=1048576",
)

_TABLES: Final = (
    """CREATE TABLE delivery_targets (
        target TEXT PRIMARY KEY, cursor INTEGER NOT NULL, sending TEXT,
        failing_since_s REAL, succeeded_s REAL, num_attempts INTEGER NOT NULL, error TEXT)""",
    """CREATE TABLE delivery_entries (
        target TEXT NOT NULL, alert_id TEXT NOT NULL, "group" TEXT NOT NULL,
        run TEXT NOT NULL, rule TEXT NOT NULL, severity TEXT NOT NULL, state TEXT NOT NULL,
        cursor INTEGER NOT NULL, is_told INTEGER NOT NULL, is_pending INTEGER NOT NULL,
        PRIMARY KEY (target, alert_id))""",
    """CREATE TABLE delivery_groups (
        target TEXT NOT NULL, "group" TEXT NOT NULL, since_s REAL NOT NULL,
        sent_s REAL NOT NULL, PRIMARY KEY (target, "group"))""",
    f"PRAGMA user_version={VERSION}",
)


class SQLiteDeliveryLog:
    """One connection, which one thread at a time uses."""

    def __init__(self, directory: Path) -> None:
        """Open or create the file; one that is damaged is set aside.

        Raises:
            StorageError: If it cannot be used, or another version of gradwatch wrote it.
        """
        self._path = directory / DELIVERIES_NAME
        self._lock = threading.Lock()
        try:
            self._connection = self._opened()
        except StorageError as error:
            if error.fault is not StorageFault.DAMAGED:
                raise _explained(self._path, error) from error
            self._connection = self._anew(error)

    def _anew(self, why: StorageError) -> sqlite3.Connection:
        try:
            kept = quarantine(self._path)
            made = self._opened()
        except (OSError, StorageError) as error:
            msg = f"{self._path} is damaged ({why}), and no other can be put in its place: {error}"
            raise StorageError(msg, StorageFault.UNUSABLE) from error
        logger.error(
            "%s is damaged (%s) and kept as %s: each target begins at the newest alert event",
            self._path,
            why,
            kept.name,
        )
        return made

    def _opened(self) -> sqlite3.Connection:
        create_private(self._path)
        make_private([self._path])
        with storage_errors():
            connection = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False, timeout=BUSY_S
            )
        try:
            with storage_errors():
                for pragma in _PRAGMAS:
                    connection.execute(f"PRAGMA {pragma}")
                self._make_tables(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_tables(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == VERSION:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise StorageError(str(found)[:200], StorageFault.DAMAGED)
            return
        if version != 0:
            msg = f"it has version {version}, this gradwatch reads {VERSION}"
            raise StorageError(msg, StorageFault.UNUSABLE)
        connection.execute("BEGIN IMMEDIATE")
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute("COMMIT")

    def load(self, target: str) -> SavedTarget | None:
        """Return what is kept of a target, None if it is new."""
        with self._lock, storage_errors():
            row = self._connection.execute(GET_TARGET, (target,)).fetchone()
            if row is None:
                return None
            of_target = (
                self._connection.execute(sql, (target,)) for sql in (GET_ENTRIES, GET_GROUPS)
            )
            return from_rows(row, *of_target)

    def save(self, target: str, change: TargetChange) -> None:
        """Keep what changed, all or none."""
        with self._writing() as connection:
            for sql, rows in changing(target, change):
                connection.executemany(sql, rows)

    def keep_only(self, targets: Collection[str]) -> None:
        """Forget all targets but these."""
        with self._writing() as connection:
            known = connection.execute("SELECT target FROM delivery_targets").fetchall()
            for sql, rows in forgetting(name for (name,) in known if name not in targets):
                connection.executemany(sql, rows)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, storage_errors():
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # SQLite may have done so itself
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Write the WAL back and close the file."""
        with self._lock:
            self._connection.close()


_ADVICE: Final = {
    StorageFault.UNUSABLE: "use the gradwatch that wrote it, or move it away: each target then "
    "begins at the newest alert event",
    StorageFault.FULL: "make room on its disk",
}


def _explained(path: Path, error: StorageError) -> StorageError:
    advice = _ADVICE.get(error.fault, "look after its disk, or move it away")
    return StorageError(f"cannot open the delivery log {path}: {error}; {advice}", error.fault)
