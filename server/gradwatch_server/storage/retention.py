"""Retention: what is kept of the log, of the alerts and of runs that ended, and for how long.

Records go first: what they came to is in a checkpoint, below which alone they are trimmed. Frames
stay as long as they are in a window, alerts longest. All is done in slices, between two batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gradwatch_server.core.entries import Forgotten
from gradwatch_server.core.state import State
from gradwatch_server.storage.sqlite.database import number, transaction
from gradwatch_server.storage.sqlite.log import HEAD_KINDS, Log
from gradwatch_wire import Kind
from gradwatch_wire.health import RankState

SLICE_ROWS: Final = 2_000
SLICE_BYTES: Final = 4 << 20

FREE_SLACK_BYTES: Final = 32 << 20
"""Space in the file that is free and waits for new records rather than being given back."""


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """How much is kept; the settings of the same names say what each is."""

    log_max_bytes: int = 8 << 30
    log_max_age_s: float = 7 * 86_400.0
    alerts_max_age_s: float = 365 * 86_400.0
    runs_max_age_s: float = 30 * 86_400.0
    checkpoint_s: float = 60.0


class Retention:
    """Trims one log."""

    def __init__(self, log: Log, keeping: RetentionPolicy) -> None:
        self._log = log
        self._keeping = keeping
        self._trimmed = 0

    def trim(self, now_ns: int, below: int) -> bool:
        """Trim one slice of what is too old or too much; return whether there was any.

        Args:
            now_ns: The time it is, nanoseconds since the epoch.
            below: The newest entry that a durable checkpoint stands for.

        Raises:
            sqlite3.Error: If the disk is full or fails; nothing is changed then.
        """
        return self._trim_log(now_ns, below) or self._trim_alerts(now_ns) or self._vacuum()

    def _trim_log(self, now_ns: int, below: int) -> bool:
        too_much = self._used_bytes() - self._keeping.log_max_bytes
        too_old_ns = now_ns - round(self._keeping.log_max_age_s * 1e9)
        last, size = self._trimmed, 0
        rows = self._log.db.execute(
            "SELECT log_offset, received_ns, length(payload) FROM log"
            " WHERE log_offset > ? AND log_offset <= ? ORDER BY log_offset LIMIT ?",
            (self._trimmed, below, SLICE_ROWS),
        )
        for offset, received_ns, length in rows:
            if size > SLICE_BYTES or (size >= too_much and received_ns >= too_old_ns):
                break
            last, size = offset, size + (length or 0)
        rows.close()
        if last == self._trimmed:
            return False
        with transaction(self._log.db):
            self._log.db.execute(
                "DELETE FROM log WHERE log_offset > ? AND log_offset <= ?"
                " AND kind NOT IN (?, ?, ?)",
                (self._trimmed, last, *HEAD_KINDS),
            )
        self._trimmed = last
        return True

    def _trim_alerts(self, now_ns: int) -> bool:
        too_old_ns = now_ns - round(self._keeping.alerts_max_age_s * 1e9)
        (first,) = self._log.db.execute(
            # By cursor: events lie in the order in which they were stored. The newest stays, for
            # from it the next start knows the cursor.
            "SELECT cursor FROM alert_events WHERE cursor < (SELECT max(cursor) FROM alert_events)"
            " AND stored_ns < ? ORDER BY cursor LIMIT 1",
            (too_old_ns,),
        ).fetchone() or (None,)
        if first is None:
            return False
        with transaction(self._log.db):
            self._log.db.execute(
                "DELETE FROM alert_events WHERE cursor IN (SELECT cursor FROM alert_events"
                " WHERE cursor < (SELECT max(cursor) FROM alert_events) AND stored_ns < ?"
                " ORDER BY cursor LIMIT ?)",
                (too_old_ns, SLICE_ROWS),
            )
        return True

    def _vacuum(self) -> bool:
        """Return free pages at the end of the file to the file system."""
        page_bytes = number(self._log.db, "page_size")
        if number(self._log.db, "freelist_count") * page_bytes <= FREE_SLACK_BYTES:
            return False
        pages = SLICE_BYTES // page_bytes
        # Each row of the answer is a page: it is done only as far as it is read.
        self._log.db.execute(f"PRAGMA incremental_vacuum({pages})").fetchall()
        return True

    def _used_bytes(self) -> int:
        db = self._log.db
        pages = number(db, "page_count") - number(db, "freelist_count")
        return pages * number(db, "page_size")

    def drop_heads(self, sessions: list[bytes]) -> None:
        """Delete what was kept of sessions that left memory, as far as the log is trimmed.

        Raises:
            sqlite3.Error: If the disk is full or fails; nothing is changed then.
        """
        with transaction(self._log.db):
            # Each statement reads all heads: they have no index, for few look for them.
            for first in range(0, len(sessions), 500):
                some = sessions[first : first + 500]
                marks = ", ".join("?" * len(some))
                self._log.db.execute(
                    f"DELETE FROM log WHERE log_offset <= ? AND kind IN (?, ?) AND session IN ({marks})",  # noqa: S608, E501 - marks only
                    (self._trimmed, int(Kind.HELLO), int(Kind.MANIFEST), *some),
                )


def long_ended(
    state: State, heard: Mapping[bytes, int], now_ns: int, age_s: float
) -> Iterator[Forgotten]:
    """Say which attempts ended so long ago that they are to leave memory."""
    too_old_ns = now_ns - round(age_s * 1e9)
    for run in state.runs.values():
        ended = 0
        for attempt in run.attempts:
            if not all(
                session.state in (RankState.ENDED, RankState.LOST)
                and max(session.last_ns, heard.get(session.id, 0)) < too_old_ns
                for session in attempt.sessions.values()
            ):
                break
            ended = attempt.number
        if ended:
            yield Forgotten(run.name, ended)
