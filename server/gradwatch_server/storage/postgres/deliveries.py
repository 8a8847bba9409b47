"""The delivery log in PostgreSQL, which only the node writes that has the lease."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import astuple
from typing import Final

from gradwatch_server.storage.deliveries import (
    Entry,
    GroupTimes,
    Progress,
    SavedTarget,
    TargetChange,
)
from gradwatch_server.storage.postgres.database import PostgresDatabase
from gradwatch_server.storage.postgres.lease import Lease

# The columns are, after the target, the fields of Progress, Entry and GroupTimes in their order.
_TARGET: Final = "SELECT * FROM delivery_targets WHERE target = ?"
_ENTRIES: Final = "SELECT * FROM delivery_entries WHERE target = ? ORDER BY cursor"
_GROUPS: Final = "SELECT * FROM delivery_groups WHERE target = ?"


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
            row = self._db.row(_TARGET, (target,))
            if row is None:
                return None
            return SavedTarget(
                Progress(*row[1:]),
                [Entry(*own[1:]) for own in self._db.rows(_ENTRIES, (target,))],
                {name: GroupTimes(*own) for _, name, *own in self._db.rows(_GROUPS, (target,))},
            )

    def save(self, target: str, change: TargetChange) -> None:
        """Keep what changed, all or none."""
        entries = [(target, *astuple(own)) for own in change.entries]
        groups = [(target, name, *astuple(times)) for name, times in change.groups.items()]
        old_entries = [*(own[:2] for own in entries), *((target, own) for own in change.forgotten)]
        old_groups = [*(own[:2] for own in groups), *((target, own) for own in change.ended)]
        with self._lock, self._db.transaction():
            for table, key, old, new in (
                ("targets", "", [(target,)], [(target, *astuple(change.progress))]),
                ("entries", "AND alert_id = ?", old_entries, entries),
                ("groups", 'AND "group" = ?', old_groups, groups),
            ):
                delete = f"DELETE FROM delivery_{table} WHERE target = ? {key}"  # noqa: S608
                self._db.executemany(delete, old)
                if new:
                    values = ", ".join("?" * len(new[0]))
                    insert = f"INSERT INTO delivery_{table} VALUES ({values})"  # noqa: S608
                    self._db.executemany(insert, new)

    def keep_only(self, targets: Collection[str]) -> None:
        """Forget all targets but these."""
        with self._lock, self._db.transaction():
            for table in ("targets", "entries", "groups"):
                delete = f"DELETE FROM delivery_{table} WHERE NOT target = ANY(?)"  # noqa: S608
                self._db.execute(delete, (list(targets),))

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._db.close()
