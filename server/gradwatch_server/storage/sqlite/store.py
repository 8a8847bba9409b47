"""The store in one SQLite file of a data directory, which one aggregator has at a time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from gradwatch_server.clock import Clock
from gradwatch_server.storage.sqlite.alert_events import SQLiteAlertEvents
from gradwatch_server.storage.sqlite.curves import SQLiteCurves
from gradwatch_server.storage.sqlite.database import Database
from gradwatch_server.storage.sqlite.filesystem import network_type
from gradwatch_server.storage.sqlite.lock import DirectoryLock, Noted
from gradwatch_server.storage.sqlite.log import SQLiteLog, SQLiteRecords
from gradwatch_server.storage.sqlite.private_files import make_private
from gradwatch_server.storage.sqlite.saved_state import SQLiteSavedState
from gradwatch_server.storage.store import Loss, StorageError, StorageFault

DATABASE_NAME: Final = "gradwatch.db"

NOTE_S: Final = 1.0
"""How often it is noted beside the file how far it is."""

_ADVICE: Final = {
    StorageFault.DAMAGED: "; move the file away to start afresh",
    StorageFault.FULL: "; make room on its disk, or choose another directory with --data",
    StorageFault.FAILED: "; see to its disk and owner, or choose another directory with --data",
    StorageFault.BUSY: "; end the program that has it open",
}
"""What to do; where nothing is said the error itself does."""


class SQLiteStore:
    """Log, alert events and saved state over one database."""

    def __init__(self, db: Database, clock: Clock, lock: DirectoryLock | None = None) -> None:
        """Use an open database.

        Args:
            db: The database; it is closed with the store.
            clock: Gives the time at which an alert event is stored.
            lock: What keeps others out; it is released with the store.

        Raises:
            StorageError: If it is damaged; it is closed then.
        """
        self.db = db
        self._lock = lock
        self._noted_s = 0.0
        self._compared = False  # with what was noted, which is to stand until then
        try:
            self._log = _log_of(db)
        except StorageError:
            db.close()
            raise
        self._alert_events = SQLiteAlertEvents(db, clock)
        self._state = SQLiteSavedState(db)
        self._curves = SQLiteCurves(db)
        self._records = SQLiteRecords(db)

    @classmethod
    def open(
        cls, directory: Path, clock: Clock, *, allow_network_fs: bool = False, boot: str = ""
    ) -> Self:
        """Open or create the store of a data directory.

        Args:
            directory: The data directory.
            clock: Gives the time.
            allow_network_fs: Whether it may be on a network file system.
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
            store = cls(Database(path, is_ours=lock.noted != Noted()), clock, lock)
        except StorageError as error:
            msg = f"cannot open the log {path}: {error}{_ADVICE.get(error.fault, '')}"
            raise StorageError(msg, error.fault) from error
        make_private(path.parent.glob(f"{DATABASE_NAME}*"))  # also those that were set aside
        return store

    @property
    def name(self) -> str:
        """The path of the file."""
        return self.db.name

    @property
    def log(self) -> SQLiteLog:
        """The entries."""
        return self._log

    @property
    def alert_events(self) -> SQLiteAlertEvents:
        """Alert events."""
        return self._alert_events

    @property
    def state(self) -> SQLiteSavedState:
        """Saved state that a restart begins with."""
        return self._state

    @property
    def curves(self) -> SQLiteCurves:
        """The curves."""
        return self._curves

    @property
    def records(self) -> SQLiteRecords:
        """The statistics in the log, for any thread."""
        return self._records

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is written inside, all or none, however many calls write it."""
        self._log.mark()
        try:
            with self.db.transaction():
                yield
        except BaseException:
            self._log.roll_back()
            self._alert_events.reset()
            raise

    def used_bytes(self) -> int:
        """Return the size of the file without its free pages."""
        return self.db.used_bytes()

    def vacuum(self, num_bytes: int) -> bool:
        """Give about so much free space back to the file system; return whether there was any."""
        return self.db.vacuum(num_bytes)

    def check(self) -> None:
        """Raise a `StorageError` if the file was removed or replaced; note how far it is."""
        self.db.check_present()
        is_first = self._log.last_row > 0 and self._lock is not None and not self._lock.noted.row
        if is_first or time.monotonic() - self._noted_s >= NOTE_S:
            self._note()

    def _note(self) -> None:
        if self._lock is not None and self._compared:
            self._noted_s = time.monotonic()
            self._lock.note(Noted(self._log.last_row, self._alert_events.last_cursor))

    def find_loss(self) -> Loss | None:
        """Compare log and alert events with what was noted beside them when they were last used."""
        noted = self._lock.noted if self._lock is not None else Noted()
        last = self._log.last_row
        self._compared = True
        self._alert_events.skip_to(noted.cursor)
        if last >= noted.row:
            return self.db.loss
        missing = noted.row - last
        found = f"ends at row {last}" if last else "is empty"
        text = (
            f"the log {self.name} {found}, and had {noted.row} rows or more when it was last "
            f"used: the newest {missing} are lost, unless a copy of the file and its -wal can be "
            "put back while the aggregator is stopped"
        )
        if self.db.loss is not None:
            text = f"{self.db.loss.text}; {text}"
        return Loss(text, missing)

    def reset(self, why: StorageError) -> None:
        """Keep a damaged file under another name and go on with what can be read of it."""
        self.db.reset(why)
        self._log.reset()
        self._alert_events.reset()

    def close(self) -> None:
        """Close the file and let the directory go."""
        if self.db.is_open:
            with contextlib.suppress(StorageError):
                self._note()
        self.db.close()
        if self._lock is not None:
            self._lock.release()


def _log_of(db: Database) -> SQLiteLog:
    try:
        return SQLiteLog(db)
    except StorageError as error:
        if error.fault is not StorageFault.DAMAGED:
            raise
        db.reset(error)
        return SQLiteLog(db)


def _check_filesystem(directory: Path, *, allow_network_fs: bool) -> None:
    if not allow_network_fs and (kind := network_type(directory)) is not None:
        msg = (
            f"the data directory {directory} is on a network file system ({kind}), where the "
            "log could be damaged; choose one on a local disk with --data, or accept it with "
            "allow_network_fs"
        )
        raise StorageError(msg, StorageFault.UNUSABLE)
