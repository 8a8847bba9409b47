"""The delivery log of a cluster, which the node that sends notifications writes."""

from __future__ import annotations

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
from gradwatch_server.storage.postgres.connections import execute_all
from gradwatch_server.storage.postgres.database import Database, Fence

# The columns are, after the target, the fields of Progress, Entry and GroupTimes in their order.
_PUT_TARGET: Final = """
    INSERT INTO delivery_targets VALUES (%s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (target) DO UPDATE SET (cursor, sending, failing_since_s, succeeded_s,
    num_attempts, error) = ROW (excluded.cursor, excluded.sending, excluded.failing_since_s,
    excluded.succeeded_s, excluded.num_attempts, excluded.error)
"""

_PUT_ENTRY: Final = """
    INSERT INTO delivery_entries VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (target, alert_id) DO UPDATE SET (told_in, run, rule, severity, state, cursor,
    is_told, is_pending, is_muted) = ROW (excluded.told_in, excluded.run, excluded.rule,
    excluded.severity, excluded.state, excluded.cursor, excluded.is_told, excluded.is_pending,
    excluded.is_muted)
"""

_PUT_GROUP: Final = """
    INSERT INTO delivery_groups VALUES (%s, %s, %s, %s, %s)
    ON CONFLICT (target, told_in) DO UPDATE SET (since_s, sent_s, repeated_s) =
    ROW (excluded.since_s, excluded.sent_s, excluded.repeated_s)
"""

_TABLES: Final = ("delivery_targets", "delivery_entries", "delivery_groups")


class PostgresDeliveryLog:
    """What is kept of notifications, for any thread."""

    def __init__(self, db: Database, fence: Fence) -> None:
        self._db = db
        self._fence = fence

    def load(self, target: str) -> SavedTarget | None:
        """Return what is kept of a target, None if it is new."""
        of_target = "WHERE target = %s"
        with self._db.snapshot() as connection:
            row = connection.execute(
                f"SELECT * FROM delivery_targets {of_target}",
                (target,),
            ).fetchone()
            if row is None:
                return None
            entries = connection.execute(
                f"SELECT * FROM delivery_entries {of_target} ORDER BY cursor",
                (target,),
            ).fetchall()
            groups = connection.execute(
                f"SELECT * FROM delivery_groups {of_target}",
                (target,),
            ).fetchall()
        return SavedTarget(
            Progress(*row[1:]),
            [Entry(*own[1:]) for own in entries],
            {group: GroupTimes(*times) for _, group, *times in groups},
        )

    def save(self, target: str, change: TargetChange) -> None:
        """Keep what changed, all or none."""
        entries = [(target, *astuple(own)) for own in change.entries]
        groups = [(target, group, *astuple(times)) for group, times in change.groups.items()]
        with self._db.writing(self._fence) as connection:
            connection.execute(_PUT_TARGET, (target, *astuple(change.progress)))
            execute_all(connection, _PUT_ENTRY, entries)
            connection.execute(
                "DELETE FROM delivery_entries WHERE target = %s AND alert_id = ANY(%s)",
                (target, list(change.forgotten)),
            )
            execute_all(connection, _PUT_GROUP, groups)
            connection.execute(
                "DELETE FROM delivery_groups WHERE target = %s AND told_in = ANY(%s)",
                (target, list(change.ended)),
            )

    def keep_only(self, targets: Collection[str]) -> None:
        """Forget all targets but these."""
        with self._db.writing(self._fence) as connection:
            for table in _TABLES:
                delete = f"DELETE FROM {table} WHERE target <> ALL(%s)"
                connection.execute(delete, (list(targets),))

    def close(self) -> None:
        """Let it go: the connections are the ledger's."""
