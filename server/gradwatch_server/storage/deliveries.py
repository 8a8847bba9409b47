"""State of notifications on disk, so that a restart or a crash misses none.

`sqlite/` has it in a file of its own: what writes the log waits for nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
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
class Progress:
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

    progress: Progress
    entries: Sequence[Entry] = ()
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

    progress: Progress
    entries: Sequence[Entry] = ()
    forgotten: Collection[str] = ()
    groups: Mapping[str, GroupTimes] = field(default_factory=dict)
    ended: Collection[str] = ()


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
