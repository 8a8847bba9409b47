"""Rows of a store as its callers have them, and its errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from gradwatch_server.core.entries import Entry
from gradwatch_server.errors import GradwatchError
from gradwatch_wire import Stats
from gradwatch_wire.value import value

PAGE_EVENTS: Final = 200
"""Alert events read at once. Reads must stay short: SQLite's WAL does not shrink during one."""


class StorageFault(Enum):
    """Why a store could not do what it was asked for."""

    DAMAGED = "damaged"  # what is kept is not what was written: `Store.reset` begins anew
    FULL = "full"  # no space is left: the same call may succeed later
    BUSY = "busy"  # somebody else uses it just now: the same call may succeed soon
    LOCKED = "locked"  # another writer has it for as long as it runs
    UNUSABLE = "unusable"  # the place cannot be used at all, or is of another version
    GONE = "gone"  # its place was removed or replaced under it: it has to be opened anew
    FAILED = "failed"  # anything else, an I/O error for one: the same call may succeed later


class StorageError(GradwatchError):
    """A store could not do what it was asked for; nothing was changed.

    Args:
        message: What was wrong, and for errors at the start also what to do.
    """

    def __init__(self, message: str, fault: StorageFault = StorageFault.FAILED) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Loss:
    """Loss of a store that had more before.

    Args:
        rows: Rows of the log that are missing, at the least.
    """

    text: str
    rows: int


@value()
class LogEntry:
    """An entry of a run's log, with the message it came as, if it came over the wire."""

    run: str
    entry: Entry
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class LogRow:
    """Entries of one run that were committed together.

    Args:
        number: Place of the row among all rows, rising.
        last: Number of its newest entry in the log of the run.
    """

    number: int
    run: str
    last: int
    received_ns: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class NewAlertEvent:
    """A change of an alert that is to be stored.

    Args:
        change: What happened to it; with the id it is unique in the store.
    """

    alert_id: str
    change: str
    run: str
    body: str


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """A stored change of an alert.

    Args:
        cursor: Position in the stream of all alert events, from 1, without repeats.
    """

    cursor: int
    run: str
    alert: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSave:
    """Changes of one run that are to be written.

    Args:
        body: The run itself, encoded; None removes all that is saved of it.
        whole: Whether attempts that were saved before go first.
        summary: The run in short, encoded, if no rank of it is waited for; else None.
        first_attempt: Attempts below this one are removed.
    """

    run: str
    body: bytes | None = None
    whole: bool = False
    summary: bytes | None = None
    attempts: Mapping[int, bytes] = field(default_factory=dict)
    first_attempt: int = 1

    @property
    def num_bytes(self) -> int:
        return len(self.body or b"") + sum(map(len, self.attempts.values()))


@dataclass(frozen=True, slots=True)
class SavedRun:
    """Saved form of one run.

    Args:
        attempts: Number to encoded attempt, in order.
    """

    body: bytes
    attempts: Mapping[int, bytes]


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """Statistics of one rank as they are in the log."""

    number: int
    received_ns: int
    session: bytes
    stats: Stats


@dataclass(frozen=True, slots=True)
class ForgottenRun:
    """A run that left memory."""

    position: int = 0
    attempts: int = 0
