"""State of notifications on disk, so that a restart or a crash misses none.

`sqlite/` has it in a file of its own: what writes the log waits for nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from gradwatch_wire.health import AlertState

Row: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class DeliveryState:
    """An alert that a target is to be told of, or was told of.

    Args:
        alert_id: The alert.
        group: The messages that it is told in.
        run: Name of its run.
        rule: Name of its rule.
        severity: Its severity at the event.
        state: `firing` or `resolved`, after the event.
        cursor: The alert event that says how it stands; what is told is read there.
        is_told: Whether the target was told that it fires.
        is_pending: Whether the event is still to be told.
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
        sent_s: When its last message was sent.
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
        num_attempts: Attempts since the last one that was delivered.
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
        progress: How far it is now.
        entries: Those that are new or changed.
        forgotten: Ids of alerts of which there is no entry any more.
        groups: Times that are new or changed.
        ended: Groups that are not there any more.
    """

    progress: DeliveryProgress
    entries: Sequence[DeliveryState] = ()
    forgotten: Collection[str] = ()
    groups: Mapping[str, GroupTimes] = field(default_factory=dict)
    ended: Collection[str] = ()


GET_TARGET: Final = "SELECT * FROM delivery_targets WHERE target = ?"
GET_ENTRIES: Final = "SELECT * FROM delivery_entries WHERE target = ? ORDER BY cursor"
GET_GROUPS: Final = "SELECT * FROM delivery_groups WHERE target = ?"
"""Columns: after the target the fields of Progress, Entry, GroupTimes in their order."""

_KEYS: Final = {"targets": "", "entries": " AND alert_id = ?", "groups": ' AND "group" = ?'}
"""Tables, and the rest of the key of each."""


def from_rows(target: Row, entries: Iterable[Row], groups: Iterable[Row]) -> SavedTarget:
    """Return the target that rows of the three tables stand for."""
    return SavedTarget(
        DeliveryProgress(*target[1:]),
        [DeliveryState(*row[1:-2], *map(bool, row[-2:])) for row in entries],
        {group: GroupTimes(*times) for _, group, *times in groups},
    )


def changing(target: str, change: TargetChange) -> Iterator[tuple[str, list[Row]]]:
    """Yield the statements of a change, for databases of both kinds, each with its rows."""
    entries = [(target, *astuple(entry)) for entry in change.entries]
    groups = [(target, name, *astuple(times)) for name, times in change.groups.items()]
    yield from _replacing("targets", [(target,)], [(target, *astuple(change.progress))])
    gone = [(target, alert_id) for alert_id in change.forgotten]
    yield from _replacing("entries", [*(row[:2] for row in entries), *gone], entries)
    gone = [(target, group) for group in change.ended]
    yield from _replacing("groups", [*(row[:2] for row in groups), *gone], groups)


def forgetting(targets: Iterable[str]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the statements that forget targets, each with its rows."""
    rows: list[Row] = [(target,) for target in targets]
    for table in _KEYS:
        yield f"DELETE FROM delivery_{table} WHERE target = ?", rows  # noqa: S608 - of the code


def _replacing(table: str, keys: list[Row], rows: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    if keys:
        yield f"DELETE FROM delivery_{table} WHERE target = ?{_KEYS[table]}", keys  # noqa: S608
    if rows:
        values = ", ".join("?" * len(rows[0]))
        yield f"INSERT INTO delivery_{table} VALUES ({values})", rows  # noqa: S608


class DeliveryLog(Protocol):
    """Store of the state of targets. Any thread may call; one target is of one thread."""

    def load(self, target: str) -> SavedTarget | None:
        """Return what is kept of a target, None if it is new.

        Raises:
            StorageError: If it cannot be read.
        """

    def save(self, target: str, change: TargetChange) -> None:
        """Keep what changed, all or none: a process that is killed afterwards finds it.

        After a power failure an earlier save may be found instead, never a later one.

        Raises:
            StorageError: If it cannot be written; nothing was changed.
        """

    def keep_only(self, targets: Collection[str]) -> None:
        """Forget all targets but these: one that comes back later is new.

        Raises:
            StorageError: If that cannot be written.
        """

    def close(self) -> None:
        """Let it go."""
