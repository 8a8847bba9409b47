"""Protocol of a store: logs, alert events and the saved state, kept over restarts and crashes.

`sqlite/` is one. All that a caller may rely on is here, and `tests/server/storage/test_contract.py`
holds every implementation to it:

* The engine's thread writes and is the only one that does; `AlertEventReader` is for any thread.
* A call that returns has committed. One that raises has changed nothing.
* Whatever fails raises a `StorageError`, which says what kind of fault it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from gradwatch_server.core.entries import Entry
from gradwatch_server.errors import GradwatchError
from gradwatch_server.storage.curves import CurveStore
from gradwatch_wire import Stats

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
        fault: What kind of fault it is.
    """

    def __init__(self, message: str, fault: StorageFault = StorageFault.FAILED) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Loss:
    """Loss of a store that had more before.

    Args:
        text: What was found, and what to do.
        rows: Rows of the log that are missing, at the least.
    """

    text: str
    rows: int


@dataclass(frozen=True, slots=True)
class Line:
    """An entry of a run's log, with the message it came as, if it came over the wire."""

    run: str
    entry: Entry
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class LogRow:
    """Entries of one run that were committed together.

    Args:
        number: Place of the row among all rows, rising.
        run: Name of the run.
        last: Number of its newest entry in the log of the run.
        received_ns: Time of that entry, nanoseconds since the epoch.
        num_bytes: About what it takes in the store.
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
        alert_id: The alert.
        change: What happened to it; with the id it is unique in the store.
        run: Name of the run.
        body: The alert as it then stood, JSON.
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
        run: Name of the run.
        alert: The alert as it then stood, JSON.
    """

    cursor: int
    run: str
    alert: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSave:
    """Changes of one run that are to be written.

    Args:
        run: Its name.
        body: The run itself, encoded; None removes all that is saved of it.
        whole: Whether attempts that were saved before go first.
        attempts: Number to encoded attempt, of those that changed.
        first_attempt: Attempts below this one are removed.
    """

    run: str
    body: bytes | None = None
    whole: bool = False
    attempts: Mapping[int, bytes] = field(default_factory=dict)
    first_attempt: int = 1

    @property
    def num_bytes(self) -> int:
        """Bytes of what changed."""
        return len(self.body or b"") + sum(map(len, self.attempts.values()))


@dataclass(frozen=True, slots=True)
class SavedRun:
    """Saved form of one run.

    Args:
        body: The run itself, encoded.
        attempts: Number to encoded attempt, in order.
    """

    body: bytes
    attempts: Mapping[int, bytes]


class Log(Protocol):
    """The log of each run: its entries, numbered from 1 in the order in which they were committed.

    Heads are the entries that the rest is read with: beginnings, HELLOs, manifests, settings.
    """

    def runs(self) -> list[str]:
        """Return the names of the runs that have entries, those first that began first."""

    def last(self, run: str) -> int:
        """Return the number of the newest entry of a run, also if that was trimmed."""

    def append(self, lines: Sequence[Line]) -> None:
        """Write lines and commit them, all or none."""

    def skip_to(self, run: str, number: int) -> None:
        """Give no entry of a run a number up to this one, which its saved state stands for."""

    def entries(self, run: str, after: int = 0) -> Iterator[tuple[int, Entry]]:
        """Yield the entries of a run after a number with theirs, oldest first.

        Rows that cannot be read by themselves are logged and passed over. If more is damaged than
        that, it is an error: a log that ended early would be taken for the truth.
        """

    def oldest(self, after: int, most: int) -> list[LogRow]:
        """Return up to *most* rows of all runs after a row, oldest first, without heads."""

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each run, without heads."""

    def delete(self, rows: Sequence[int]) -> None:
        """Delete rows by their numbers."""

    def trim(self, run: str, upto: int, num_bytes: int, most: int) -> int:
        """Delete the oldest rows of a run, but no heads, until they took so much.

        Args:
            run: Name of the run.
            upto: Number of the newest entry that may go.
            num_bytes: Bytes to delete.
            most: Rows to delete at most.

        Returns:
            The bytes that went.
        """

    def trim_heads(self, run: str, sessions: Collection[bytes] | None) -> None:
        """Delete the heads of a run with which nothing is read any more.

        These are older than its oldest row, and of none of the *sessions* that are in memory; all
        if the run is not. Settings go with the last of the run.
        """

    def remove(self, run: str, upto: int, most: int) -> bool:
        """Delete up to *most* rows of a run, heads too; return whether there were any."""


@dataclass(frozen=True, slots=True)
class KeptRecord:
    """Statistics of one rank as they are in the log.

    Args:
        number: Number in the log of the run.
        received_ns: When they came in, nanoseconds since the epoch.
        session: The session.
        stats: The record.
    """

    number: int
    received_ns: int
    session: bytes
    stats: Stats


class Records(Protocol):
    """The statistics in the log of a run, for any thread, without those that are trimmed."""

    def before(
        self, run: str, number: int, most: int, session: bytes | None = None
    ) -> Iterator[KeptRecord]:
        """Yield the statistics up to an entry, the newest first, of the last *most* entries.

        Of one *session*, or of all.
        """

    def after(self, run: str, number: int, most: int) -> Iterator[KeptRecord]:
        """Yield the statistics after an entry, oldest first, of the next *most* entries."""


class AlertEventReader(Protocol):
    """The stored alert events, for any thread."""

    def newest(self) -> int:
        """Return the cursor of the newest event, 0 without any."""

    def after(
        self,
        cursor: int,
        run: str | None = None,
        most: int = PAGE_EVENTS,
        state: str | None = None,
    ) -> list[AlertEvent]:
        """Return the events after *cursor*, oldest first, at most *most*.

        Of one *run* or of all; those after which the alert was in one *state*, or all. `change`
        begins with that state, up to a colon.
        """

    def of_alert(self, alert_id: str) -> list[AlertEvent]:
        """Return the events of one alert that are kept, oldest first."""


class AlertEvents(AlertEventReader, Protocol):
    """The same for the one thread that writes."""

    def add(self, events: Sequence[NewAlertEvent]) -> int:
        """Store each change of each alert once; return the newest cursor of all.

        What is stored already keeps its cursor, and takes none away.
        """

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each run."""

    def trim(self, before_ns: int, most: int) -> int:
        """Delete up to *most* of the events stored before a time; return how many went.

        The newest event stays, whatever its age, so that the cursor goes on from it.
        """

    def trim_run(self, run: str, num_bytes: int, most: int) -> int:
        """Delete the oldest events of a run until they took so much; return how many went.

        At most *most* of them, and never the newest event of all.
        """

    def remove_run(self, run: str, upto: int, most: int) -> int:
        """Delete up to *most* events of a run with cursors up to *upto*; return how many went.

        The newest event of all stays, so that the cursor goes on from it.
        """


@dataclass(frozen=True, slots=True)
class ForgottenRun:
    """A run that left memory.

    Args:
        position: Number of the newest entry of its log then.
        attempts: Number of its last attempt.
    """

    position: int = 0
    attempts: int = 0


class SavedState(Protocol):
    """Each run as it was at some entry of its log, as `checkpoints` encodes it."""

    def save(self, parts: Mapping[str, bytes], runs: Sequence[RunSave]) -> None:
        """Replace *parts*, which are of no run, and what changed of *runs*, all or none."""

    def part(self, name: str) -> bytes | None:
        """Return a part that is of no run, None if there is none."""

    def runs(self) -> list[str]:
        """Return the names of the saved runs in the order in which they were first saved."""

    def run(self, name: str) -> SavedRun | None:
        """Return what is saved of a run, None if nothing is."""

    def forget(self, run: str, forgotten: ForgottenRun, now_ns: int) -> None:
        """Remove what is saved of a run, and keep what its name must not be used for again."""

    def forgotten(self, run: str) -> ForgottenRun:
        """Return what is kept of the name of a run that left memory."""

    def trim_forgotten(self, before_ns: int) -> None:
        """Delete names that were forgotten before a time."""


class Store(Protocol):
    """Store that the engine writes, and finds again after a restart or a crash."""

    @property
    def name(self) -> str:
        """Name in errors: its path or its address."""

    @property
    def log(self) -> Log:
        """The entries."""

    @property
    def alert_events(self) -> AlertEvents:
        """Alert events."""

    @property
    def state(self) -> SavedState:
        """Saved state that a restart begins with."""

    @property
    def curves(self) -> CurveStore:
        """The curves."""

    @property
    def records(self) -> Records:
        """The statistics in the log, for any thread."""

    def transaction(self) -> AbstractContextManager[None]:
        """Commit what is written inside, all or none, however many calls write it."""

    def used_bytes(self) -> int:
        """Return about how much space all of it takes, without what is free for new entries."""

    def vacuum(self, num_bytes: int) -> bool:
        """Give about so much free space back to the system; return whether there was any."""

    def check(self) -> None:
        """Make sure that the store is where it was opened; called between any two batches.

        Raises:
            StorageError: If what is written could not be found again.
        """

    def find_loss(self) -> Loss | None:
        """Say what is missing of what the store had; None if nothing is known to be.

        To be asked once, when log and saved state have been read. No cursor that an alert event
        had is given again.
        """

    def reset(self, why: StorageError) -> None:
        """Keep what is damaged under another name and go on with what can be read of it."""

    def close(self) -> None:
        """Let the store go, so that another writer may have it."""
