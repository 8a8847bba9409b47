"""The delivery log in one SQLite file of the data directory, beside the log."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
from collections.abc import Collection, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Final

from gradwatch_server.storage.deliveries import (
    Entry,
    GroupTimes,
    Progress,
    SavedTarget,
    TargetChange,
)
from gradwatch_server.storage.rows import StorageError, StorageFault
from gradwatch_server.storage.sqlite.files import quarantine
from gradwatch_server.storage.sqlite.private_files import create_private, make_private
from gradwatch_server.storage.sqlite.reader import storage_errors

logger = logging.getLogger(__name__)

DELIVERIES_NAME: Final = "notifications.sqlite"

BUSY_S: Final = 5.0
"""How long it waits for who looks into the file from outside."""

VERSION: Final = 2

_PRAGMAS: Final = (
    "journal_mode=WAL",
    # A process that is killed loses nothing by it; a power failure may cost the newest commits,
    # and what they say is then done once more.
    "synchronous=NORMAL",
    "journal_size_limit=1048576",
)

# The columns are, after the target, the fields of Progress, Entry and GroupTimes in their order.
_TABLES: Final = (
    """CREATE TABLE targets (target TEXT PRIMARY KEY, cursor INTEGER NOT NULL, sending TEXT,
        failing_since_s REAL, succeeded_s REAL, num_attempts INTEGER NOT NULL, error TEXT)""",
    """CREATE TABLE entries (target TEXT NOT NULL, alert_id TEXT NOT NULL, "group" TEXT NOT NULL,
        run TEXT NOT NULL, rule TEXT NOT NULL, severity TEXT NOT NULL, state TEXT NOT NULL,
        cursor INTEGER NOT NULL, is_told INTEGER NOT NULL, is_pending INTEGER NOT NULL,
        PRIMARY KEY (target, alert_id))""",
    """CREATE TABLE groups (target TEXT NOT NULL, "group" TEXT NOT NULL, since_s REAL NOT NULL,
        sent_s REAL NOT NULL, PRIMARY KEY (target, "group"))""",
    f"PRAGMA user_version={VERSION}",
)


_PUT_TARGET: Final = "INSERT OR REPLACE INTO targets VALUES (?, ?, ?, ?, ?, ?, ?)"
_PUT_ENTRY: Final = "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PUT_GROUP: Final = "INSERT OR REPLACE INTO groups VALUES (?, ?, ?, ?)"
_GET_TARGET: Final = "SELECT * FROM targets WHERE target = ?"
_GET_ENTRIES: Final = "SELECT * FROM entries WHERE target = ? ORDER BY cursor"
_GET_GROUPS: Final = "SELECT * FROM groups WHERE target = ?"


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
            row = self._connection.execute(_GET_TARGET, (target,)).fetchone()
            if row is None:
                return None
            entries = self._connection.execute(_GET_ENTRIES, (target,)).fetchall()
            groups = self._connection.execute(_GET_GROUPS, (target,)).fetchall()
        return SavedTarget(
            Progress(*row[1:]),
            [Entry(*own[1:-2], *map(bool, own[-2:])) for own in entries],
            {group: GroupTimes(*times) for _, group, *times in groups},
        )

    def save(self, target: str, change: TargetChange) -> None:
        """Keep what changed, all or none."""
        with self._writing() as connection:
            connection.execute(_PUT_TARGET, (target, *astuple(change.progress)))
            connection.executemany(_PUT_ENTRY, [(target, *astuple(own)) for own in change.entries])
            connection.executemany(
                "DELETE FROM entries WHERE target = ? AND alert_id = ?",
                [(target, own) for own in change.forgotten],
            )
            connection.executemany(
                _PUT_GROUP,
                [(target, group, *astuple(times)) for group, times in change.groups.items()],
            )
            connection.executemany(
                'DELETE FROM groups WHERE target = ? AND "group" = ?',
                [(target, own) for own in change.ended],
            )

    def keep_only(self, targets: Collection[str]) -> None:
        """Forget all targets but these."""
        with self._writing() as connection:
            kept = [target for (target,) in connection.execute("SELECT target FROM targets")]
            for table in ("targets", "entries", "groups"):
                connection.executemany(
                    f"DELETE FROM {table} WHERE target = ?",  # noqa: S608 - of the code
                    [(own,) for own in kept if own not in targets],
                )

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
