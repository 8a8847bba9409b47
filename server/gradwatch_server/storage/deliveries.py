"""State of notifications on disk, so that a restart or a crash misses none."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Final, TypeAlias

from gradwatch_server.storage.database import Database
from gradwatch_wire.health import AlertState

Row: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """An alert that a target is to be told of, or was told of.

    Args:
        state: `firing` or `resolved`, after the event.
        cursor: The alert event that says how it stands; what is told is read there.
    """

    alert_id: str
    group: str
    run: str
    rule: str
    severity: str
    state: str
    cursor: int
    is_told: bool = False
    is_pending: bool = False

    @property
    def is_over(self) -> bool:
        """End of an alert that the target knows of; one that began and ended untold is news."""
        return self.is_told and self.state != AlertState.FIRING


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """Times of the messages of a group, seconds since the epoch; 0 for never.

    Args:
        since_s: When the first event came that is still to be told.
    """

    since_s: float = 0.0
    sent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DeliveryProgress:
    """Progress of a target.

    Args:
        cursor: All alert events up to this one are delivered, given up, not wanted, or entries.
        sending: The group whose message was being sent, or may have arrived although no answer
            came; None if it is known of all messages what became of them.
        failing_since_s: Since when nothing could be delivered, None if the last one was.
        succeeded_s: When something was delivered last, None for never.
        error: What the last attempt failed with, without secrets; None if it did not.
    """

    cursor: int
    sending: str | None = None
    failing_since_s: float | None = None
    succeeded_s: float | None = None
    num_attempts: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SavedTarget:
    """All that is kept of a target."""

    progress: DeliveryProgress
    entries: Sequence[DeliveryState] = ()
    groups: Mapping[str, GroupTimes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TargetChange:
    """Changes of a target since it was saved last.

    Args:
        forgotten: Ids of alerts of which there is no entry any more.
    """

    progress: DeliveryProgress
    entries: Sequence[DeliveryState] = ()
    forgotten: Collection[str] = ()
    groups: Mapping[str, GroupTimes] = field(default_factory=dict)
    ended: Collection[str] = ()


_KEYS: Final = {"targets": "", "entries": " AND alert_id = ?", "groups": ' AND "group" = ?'}
"""Tables, and the rest of the key of each. Their columns are, after the target, the fields of
`DeliveryProgress`, `DeliveryState` and `GroupTimes` in their order."""


class DeliveryLog:
    """Store of the state of targets. Any thread may call; one target is of one thread.

    Args:
        db: A connection of its own, since what writes the log waits for nobody; closed with this.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = threading.Lock()

    def load(self, target: str) -> SavedTarget | None:
        """Return what is kept of a target, None if it is new."""
        select, of = "SELECT * FROM delivery_", (target,)
        with self._lock:
            progress = self._db.row(f"{select}targets WHERE target = ?", of)
            if progress is None:
                return None
            entries = self._db.rows(f"{select}entries WHERE target = ? ORDER BY cursor", of)
            groups = self._db.rows(f"{select}groups WHERE target = ?", of)
            return SavedTarget(
                DeliveryProgress(*progress[1:]),
                [DeliveryState(*row[1:-2], *map(bool, row[-2:])) for row in entries],
                {group: GroupTimes(*times) for _, group, *times in groups},
            )

    def save(self, target: str, change: TargetChange) -> None:
        """Keep what changed, all or none."""
        entries = [(target, *astuple(entry)) for entry in change.entries]
        groups = [(target, name, *astuple(times)) for name, times in change.groups.items()]
        with self._lock, self._db.transaction():
            self._replace("targets", [(target,)], [(target, *astuple(change.progress))])
            gone = [(target, alert_id) for alert_id in change.forgotten]
            self._replace("entries", [*(row[:2] for row in entries), *gone], entries)
            gone = [(target, group) for group in change.ended]
            self._replace("groups", [*(row[:2] for row in groups), *gone], groups)

    def keep_only(self, targets: Collection[str]) -> None:
        """Forget all targets but these: one that comes back later is new."""
        with self._lock, self._db.transaction():
            known = list(self._db.rows("SELECT target FROM delivery_targets"))
            gone = [(name,) for (name,) in known if name not in targets]
            for table in _KEYS:
                self._db.executemany(f"DELETE FROM delivery_{table} WHERE target = ?", gone)  # noqa: S608

    def _replace(self, table: str, keys: Sequence[Row], rows: Sequence[Row]) -> None:
        if keys:
            delete = f"DELETE FROM delivery_{table} WHERE target = ?{_KEYS[table]}"  # noqa: S608
            self._db.executemany(delete, keys)
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            self._db.executemany(f"INSERT INTO delivery_{table} VALUES ({marks})", rows)  # noqa: S608

    def close(self) -> None:
        with self._lock:
            self._db.close()
