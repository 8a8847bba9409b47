"""The delivery log in PostgreSQL, which only the node writes that has the lease."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from gradwatch_server.storage.deliveries import (
    GET_ENTRIES,
    GET_GROUPS,
    GET_TARGET,
    Row,
    SavedTarget,
    TargetChange,
    changing,
    forgetting,
    from_rows,
)
from gradwatch_server.storage.postgres.database import PostgresDatabase
from gradwatch_server.storage.postgres.lease import Lease


class PostgresDeliveryLog:
    """A connection beside that of the log, which one thread at a time uses."""

    def __init__(self, lease: Lease) -> None:
        """Connect.

        Raises:
            StorageError: If PostgreSQL cannot be reached, or refuses.
        """
        self._db = PostgresDatabase(lease)
        self._lock = threading.Lock()

    def load(self, target: str) -> SavedTarget | None:
        """Return what is kept of a target, None if it is new."""
        with self._lock:
            row = self._db.row(GET_TARGET, (target,))
            if row is None:
                return None
            entries, groups = (self._db.rows(sql, (target,)) for sql in (GET_ENTRIES, GET_GROUPS))
            return from_rows(row, entries, groups)

    def save(self, target: str, change: TargetChange) -> None:
        """Keep what changed, all or none."""
        with self._lock:
            self._write(changing(target, change))

    def keep_only(self, targets: Collection[str]) -> None:
        """Forget all targets but these."""
        with self._lock:
            known = [name for (name,) in self._db.rows("SELECT target FROM delivery_targets")]
            self._write(forgetting(name for name in known if name not in targets))

    def _write(self, statements: Iterable[tuple[str, list[Row]]]) -> None:
        with self._db.transaction():
            for sql, rows in statements:
                self._db.executemany(sql, rows)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._db.close()
