"""The store in one SQLite file of a data directory, which one aggregator has at a time."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final, Self

from gradwatch_server.clock import Clock
from gradwatch_server.storage.rows import Loss, StorageError, StorageFault
from gradwatch_server.storage.sqlite.database import SQLiteDatabase
from gradwatch_server.storage.sqlite.filesystem import network_type
from gradwatch_server.storage.sqlite.lock import DirectoryLock, StoreEnd
from gradwatch_server.storage.sqlite.private_files import make_private
from gradwatch_server.storage.store import Store

DATABASE_NAME: Final = "gradwatch.db"

NOTE_S: Final = 1.0
"""Seconds between two notes of the log's end beside the file."""

_ADVICE: Final = {
    StorageFault.DAMAGED: "; move the file away to start afresh",
    StorageFault.FULL: "; make room on its disk, or choose another directory with --data",
    StorageFault.FAILED: "; see to its disk and owner, or choose another directory with --data",
    StorageFault.BUSY: "; end the program that has it open",
}
"""Advice for each error; an error that is absent has its own."""


class SQLiteStore(Store):
    """The store in the SQLite file of a data directory, or in memory."""

    db: SQLiteDatabase

    def __init__(self, db: SQLiteDatabase, clock: Clock, lock: DirectoryLock | None = None) -> None:
        """Use an open database.

        Args:
            lock: Lock that keeps others out; it is released with the store.

        Raises:
            StorageError: If it is damaged; it is closed then.
        """
        super().__init__(db, clock)
        self._lock = lock
        self._noted_s = 0.0
        self._compared = False  # with what was noted, which is to stand until then

    @classmethod
    def open(
        cls, directory: Path, clock: Clock, *, allow_network_fs: bool = False, boot: str = ""
    ) -> Self:
        """Open or create the store of a data directory.

        Args:
            boot: What tells this start of the aggregator from others, noted in the lock.

        Raises:
            StorageError: If the directory cannot be written, is in use, is on a network file
                system, or holds no such store.
        """
        lock = DirectoryLock(directory, boot)
        try:
            _check_filesystem(directory, allow_network_fs=allow_network_fs)
            return cls._over(directory / DATABASE_NAME, clock, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _over(cls, path: Path, clock: Clock, lock: DirectoryLock) -> Self:
        try:
            store = cls(SQLiteDatabase(path, is_ours=lock.noted != StoreEnd()), clock, lock)
        except StorageError as error:
            msg = f"cannot open the log {path}: {error}{_ADVICE.get(error.fault, '')}"
            raise StorageError(msg, error.fault) from error
        make_private(path.parent.glob(f"{DATABASE_NAME}*"))  # also those that were set aside
        return store

    def check(self) -> None:
        """Raise a `StorageError` if the file was removed or replaced; note how far it is."""
        super().check()
        is_first = self.log.last_row > 0 and self._lock is not None and not self._lock.noted.row
        if is_first or time.monotonic() - self._noted_s >= NOTE_S:
            self._note()

    def _note(self) -> None:
        if self._lock is not None and self._compared:
            self._noted_s = time.monotonic()
            self._lock.note(StoreEnd(self.log.last_row, self.alert_events.last_cursor))

    def find_loss(self) -> Loss | None:
        """Compare log and alert events with what was noted beside them when they were last used."""
        noted = self._lock.noted if self._lock is not None else StoreEnd()
        last = self.log.last_row
        self._compared = True
        self.alert_events.skip_to(noted.cursor)
        if last >= noted.row:
            return self.db.loss
        missing = noted.row - last
        end = f"ends at row {last}" if last else "is empty"
        text = (
            f"the log {self.name} {end}, and had {noted.row} rows or more when it was last "
            f"used: the newest {missing} are lost, unless a copy of the file and its -wal can be "
            "put back while the aggregator is stopped"
        )
        if self.db.loss is not None:
            text = f"{self.db.loss.text}; {text}"
        return Loss(text, missing)

    def close(self) -> None:
        """Close the file and let the directory go."""
        if self.db.is_open:
            with contextlib.suppress(StorageError):
                self._note()
        super().close()
        if self._lock is not None:
            self._lock.release()


def _check_filesystem(directory: Path, *, allow_network_fs: bool) -> None:
    if not allow_network_fs and (kind := network_type(directory)) is not None:
        msg = (
            f"the data directory {directory} is on a network file system ({kind}), where the "
            "log could be damaged; choose one on a local disk with --data, or accept it with "
            "allow_network_fs"
        )
        raise StorageError(msg, StorageFault.UNUSABLE)
