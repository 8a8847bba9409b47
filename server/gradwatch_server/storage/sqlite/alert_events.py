"""Alert events: the engine stores them, readers in any thread follow them by cursor."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from itertools import islice
from typing import Final

from gradwatch_server.clock import Clock
from gradwatch_server.storage.sqlite.checksums import is_good_event, of_event
from gradwatch_server.storage.sqlite.database import Database
from gradwatch_server.storage.store import PAGE_EVENTS, AlertEvent, NewAlertEvent

logger = logging.getLogger(__name__)

_COLUMNS: Final = "cursor, alert_id, state, run, body, checksum"

ROW_BYTES: Final = 100
"""About what a row takes beside body and name, its indices included."""

_NEWEST: Final = "SELECT coalesce(max(cursor), 0) FROM alert_events"

# Not OR IGNORE, which takes a cursor away for each event that it ignores.
_ADD: Final = """
    INSERT INTO alert_events (alert_id, state, run, body, stored_ns, num_bytes, checksum)
    SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7 WHERE NOT EXISTS
        (SELECT 1 FROM alert_events WHERE alert_id = ?1 AND state = ?2)
"""

# By cursor: events lie in the order in which they were stored.
_OLDEST: Final = (
    "SELECT cursor, stored_ns FROM alert_events"
    " WHERE cursor < (SELECT max(cursor) FROM alert_events) ORDER BY cursor LIMIT ?"
)

_OF_RUN: Final = (
    "SELECT cursor, num_bytes FROM alert_events"
    " WHERE run = ? AND cursor < (SELECT max(cursor) FROM alert_events) ORDER BY cursor LIMIT ?"
)


class SQLiteAlertEvents:
    """The table of alert events. What writes uses the one connection that may, the rest its own."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._told = False  # that an event is damaged
        self._last_cursor: int | None = None

    def add(self, events: Sequence[NewAlertEvent]) -> int:
        """Store each change of each alert once; return the newest cursor of all."""
        if events:
            now_ns = self._clock.now_ns()
            facts = [(own.alert_id, own.change, own.run, own.body) for own in events]
            rows = [
                (*own, now_ns, len(own[-1]) + len(own[-2]) + ROW_BYTES, of_event(*own))
                for own in facts
            ]
            with self._db.transaction():
                self._db.executemany(_ADD.strip(), rows)
        (newest,) = self._db.row(_NEWEST)
        self._last_cursor = max(int(newest), self._last_cursor or 0)
        return int(newest)

    @property
    def last_cursor(self) -> int:
        """The newest cursor that was given, also if its event is not there any more."""
        if self._last_cursor is None:
            row = self._db.row("SELECT seq FROM sqlite_sequence WHERE name = 'alert_events'")
            self._last_cursor = int(row[0]) if row is not None else 0
        return self._last_cursor

    def skip_to(self, cursor: int) -> None:
        """Give no event a cursor up to this one: readers took them for read."""
        if cursor <= self.last_cursor:
            return
        with self._db.transaction():
            self._db.execute("DELETE FROM sqlite_sequence WHERE name = 'alert_events'")
            self._db.execute("INSERT INTO sqlite_sequence VALUES ('alert_events', ?)", (cursor,))
        self._last_cursor = cursor

    def reset(self) -> None:
        """Look anew at which cursor is the newest."""
        self._last_cursor = None

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each run."""
        sums = "SELECT run, sum(num_bytes) FROM alert_events GROUP BY run"
        return {run: int(num_bytes) for run, num_bytes in self._db.rows(sums)}

    def trim(self, before_ns: int, most: int) -> int:
        """Delete up to *most* of the events stored before a time, but not the newest of all."""
        gone: list[int] = []
        # They lie in the order in which they were stored, so that the first that stays ends it.
        for cursor, stored_ns in self._db.rows(_OLDEST, (most,)):
            if stored_ns >= before_ns:
                break
            gone.append(cursor)
        return self._delete(gone)

    def trim_run(self, run: str, num_bytes: int, most: int) -> int:
        """Delete the oldest events of a run until they took so much."""
        gone: list[int] = []
        for cursor, size in self._db.rows(_OF_RUN, (run, most)):
            if num_bytes <= 0:
                break
            gone.append(cursor)
            num_bytes -= size
        return self._delete(gone)

    def remove_run(self, run: str, upto: int, most: int) -> int:
        """Delete up to *most* events of a run with cursors up to *upto*; return how many went."""
        rows = self._db.rows(_OF_RUN, (run, most))
        return self._delete([cursor for cursor, _ in rows if cursor <= upto])

    def _delete(self, gone: Sequence[int]) -> int:
        if gone:
            with self._db.transaction():
                delete = "DELETE FROM alert_events WHERE cursor = ?"
                self._db.executemany(delete, [(cursor,) for cursor in gone])
        return len(gone)

    def newest(self) -> int:
        """Return the cursor of the newest event, 0 without any."""
        with self._db.reading() as connection:
            (cursor,) = connection.execute(_NEWEST).fetchone()
        return int(cursor)

    def after(
        self,
        cursor: int,
        run: str | None = None,
        most: int = PAGE_EVENTS,
        state: str | None = None,
    ) -> list[AlertEvent]:
        """Return the events after *cursor*, oldest first, at most *most*; of one run or of all.

        One that is damaged is left out, and the first of them is logged.
        """
        where = ""
        values: list[int | str] = [cursor]
        if run is not None:
            where, values = f"{where} AND run = ?", [*values, run]
        if state is not None:
            # GLOB and not LIKE, which takes no account of upper and lower case.
            where, values = (
                f"{where} AND (state = ? OR state GLOB ?)",
                [*values, state, f"{state}:*"],
            )
        with self._db.reading() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM alert_events WHERE cursor > ?{where}"  # noqa: S608 - a literal
                " ORDER BY cursor",
                values,
            )
            # Not LIMIT: a page that is not full says that there are no more.
            readable = (event for row in rows if (event := self._read(*row)) is not None)
            return list(islice(readable, most))

    def of_alert(self, alert_id: str) -> list[AlertEvent]:
        """Return the events of one alert that are kept, oldest first; damaged ones are left out."""
        with self._db.reading() as connection:
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM alert_events WHERE alert_id = ? ORDER BY cursor",  # noqa: S608
                (alert_id,),
            )
            return [event for row in rows if (event := self._read(*row)) is not None]

    def _read(
        self, cursor: int, alert_id: str, change: str, run: str, body: str, checksum: int | None
    ) -> AlertEvent | None:
        try:
            alert = json.loads(body)
            if not is_good_event(alert_id, change, run, body, checksum):
                why = "its checksum is another one"
            elif not isinstance(alert, dict):
                why = "it is no alert"
            else:
                return AlertEvent(cursor, run, alert)
        except (ValueError, TypeError) as error:
            why = str(error)
        if not self._told:
            logger.warning("alert event %d is left out (told once): %s", cursor, why)
        self._told = True
        return None
