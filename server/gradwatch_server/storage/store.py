"""The store: logs, alert events, saved state and curves, kept over restarts and crashes.

* The engine's thread is the only one that writes. `records`, `curves.read` and what reads alert
  events are for any thread.
* A call that returns has committed. One that raises has changed nothing, and raises a
  `StorageError`, which says what kind of fault it was.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from gradwatch_server.clock import Clock
from gradwatch_server.storage.alert_events import AlertEvents
from gradwatch_server.storage.curves import CurveStore
from gradwatch_server.storage.database import Database
from gradwatch_server.storage.log import Log, Records
from gradwatch_server.storage.rows import Loss, StorageError, StorageFault
from gradwatch_server.storage.saved_state import SavedState


class Store:
    """Store over one database."""

    def __init__(self, db: Database, clock: Clock) -> None:
        """Use an open database.

        Raises:
            StorageError: If it is damaged; it is closed then.
        """
        self.db = db
        try:
            self.log = _log_of(db)
        except StorageError:
            db.close()
            raise
        self.records = Records(db)
        self.alert_events = AlertEvents(db, clock)
        self.state = SavedState(db)
        self.curves = CurveStore(db)

    @property
    def name(self) -> str:
        """Name in errors: its path or its address."""
        return self.db.name

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is written inside, all or none, however many calls write it."""
        self.log.mark()
        try:
            with self.db.transaction():
                yield
        except BaseException:
            self.log.roll_back()
            self.alert_events.reset()
            raise

    def used_bytes(self) -> int:
        """Return about how much space all of it takes, without what is free for new entries."""
        return self.db.used_bytes()

    def vacuum(self, num_bytes: int) -> bool:
        """Give about so much free space back to the system; return whether there was any."""
        return self.db.vacuum(num_bytes)

    def check(self) -> None:
        """Make sure that the store is where it was opened; called between any two batches.

        Raises:
            StorageError: If what is written could not be found again.
        """
        self.db.check_present()

    def find_loss(self) -> Loss | None:
        """Say what is missing of what the store had; None if nothing is known to be.

        To be asked once, when log and saved state have been read. No cursor that an alert event
        had is given again.
        """
        return self.db.loss

    def reset(self, reason: StorageError) -> None:
        """Keep what is damaged under another name and go on with what can be read of it."""
        self.db.reset(reason)
        self.log.reset()
        self.alert_events.reset()

    def close(self) -> None:
        """Let the store go, so that another writer may have it."""
        self.db.close()


def _log_of(db: Database) -> Log:
    try:
        return Log(db)
    except StorageError as error:
        if error.fault is not StorageFault.DAMAGED:
            raise
        db.reset(error)
        return Log(db)
