"""Alert events: the engine stores them, readers in any thread follow them by cursor."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Sequence
from itertools import islice
from typing import Final

from gradwatch_server.clock import Clock
from gradwatch_server.core.state_codec import decode, encode
from gradwatch_server.storage.checksums import is_good_event, of_event
from gradwatch_server.storage.database import Database, SQLReader
from gradwatch_server.storage.rows import PAGE_EVENTS, AlertEvent, NewAlertEvent
from gradwatch_server.storage.saved_state import SAVE_PART

logger = logging.getLogger(__name__)

_COLUMNS: Final = "cursor, alert_id, state, run, body, checksum"

ROW_BYTES: Final = 100
"""About what a row takes beside body and name, its indices included."""

_NEWEST: Final = "SELECT coalesce(max(cursor), 0) FROM alert_events"

_ADD: Final = (
    "INSERT INTO alert_events"
    " (cursor, alert_id, state, run, body, stored_ns, num_bytes, checksum)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (alert_id, state) DO NOTHING"
)

_LAST_CURSOR: Final = "last_cursor"
"""Part of the saved state: the newest cursor that was given, also if its event is gone."""

# By cursor: events lie in the order in which they were stored.
_OLDEST: Final = (
    "SELECT cursor, stored_ns FROM alert_events"
    " WHERE cursor < (SELECT max(cursor) FROM alert_events) ORDER BY cursor LIMIT ?"
)

_OF_RUN: Final = (
    "SELECT cursor, num_bytes FROM alert_events"
    " WHERE run = ? AND cursor < (SELECT max(cursor) FROM alert_events) ORDER BY cursor LIMIT ?"
)


_LATEST: Final = (
    "cursor < ? AND NOT EXISTS (SELECT 1 FROM alert_events AS newer"
    " WHERE newer.alert_id = own.alert_id AND newer.cursor > own.cursor)"
)


class AlertEvents:
    """The alert events: one thread stores them, any thread reads them."""

    def __init__(self, db: Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._told = False  # that an event is damaged
        self._last_cursor: int | None = None

    def add(self, events: Sequence[NewAlertEvent]) -> int:
        """Store each change of each alert once; return the newest cursor of all.

        What is stored already keeps its cursor, and takes none away.
        """
        last = self.last_cursor
        if events:
            now_ns = self._clock.now_ns()
            with self._db.transaction():
                for event in events:
                    facts = event.alert_id, event.change, event.run, event.body
                    num_bytes = len(event.run) + len(event.body) + ROW_BYTES
                    row = (last + 1, *facts, now_ns, num_bytes, of_event(*facts))
                    last += self._db.execute(_ADD, row)
                if last > self.last_cursor:
                    self._db.execute(SAVE_PART, (_LAST_CURSOR, encode(last)))
        self._last_cursor = last
        return self._newest(self._db)

    @property
    def last_cursor(self) -> int:
        """The newest cursor that was given, also if its event is not there any more."""
        if self._last_cursor is None:
            self._last_cursor = self._newest(self._db)
            row = self._db.row("SELECT body FROM saved_state WHERE part = ?", (_LAST_CURSOR,))
            with contextlib.suppress(ValueError):  # damaged
                given = decode(row[0], int) if row else 0
                self._last_cursor = max(self._last_cursor, given)
        return self._last_cursor

    def skip_to(self, cursor: int) -> None:
        """Give no event a cursor up to this one: readers took them for read."""
        if cursor > self.last_cursor:
            with self._db.transaction():
                self._db.execute(SAVE_PART, (_LAST_CURSOR, encode(cursor)))
            self._last_cursor = cursor

    def reset(self) -> None:
        """Look anew at which cursor is the newest."""
        self._last_cursor = None

    def sizes(self) -> dict[str, int]:
        sums = "SELECT run, sum(num_bytes) FROM alert_events GROUP BY run"
        return {run: int(num_bytes) for run, num_bytes in self._db.rows(sums)}

    def trim(self, before_ns: int, limit: int) -> int:
        """Delete up to *limit* of the events stored before a time; return how many went.

        The newest event stays, whatever its age, so that the cursor goes on from it.
        """
        gone: list[int] = []
        # They lie in the order in which they were stored, so that the first that stays ends it.
        for cursor, stored_ns in self._db.rows(_OLDEST, (limit,)):
            if stored_ns >= before_ns:
                break
            gone.append(cursor)
        return self._delete(gone)

    def trim_run(self, run: str, num_bytes: int, limit: int) -> int:
        """Delete the oldest events of a run until they took so much; return how many went.

        At most *limit* of them, and never the newest event of all.
        """
        gone: list[int] = []
        for cursor, size in self._db.rows(_OF_RUN, (run, limit)):
            if num_bytes <= 0:
                break
            gone.append(cursor)
            num_bytes -= size
        return self._delete(gone)

    def remove_run(self, run: str, upto: int, limit: int) -> int:
        """Delete up to *limit* events of a run with cursors up to *upto*; return how many went.

        The newest event of all stays, so that the cursor goes on from it.
        """
        rows = self._db.rows(_OF_RUN, (run, limit))
        return self._delete([cursor for cursor, _ in rows if cursor <= upto])

    def _delete(self, gone: Sequence[int]) -> int:
        if gone:
            with self._db.transaction():
                delete = "DELETE FROM alert_events WHERE cursor = ?"
                self._db.executemany(delete, [(cursor,) for cursor in gone])
        return len(gone)

    def newest(self) -> int:
        """Return the cursor of the newest event, 0 without any."""
        with self._db.reading() as reader:
            return self._newest(reader)

    @staticmethod
    def _newest(reader: SQLReader) -> int:
        (cursor,) = reader.row(_NEWEST)
        return int(cursor)

    def after(
        self,
        cursor: int,
        run: str | None = None,
        limit: int = PAGE_EVENTS,
        state: str | None = None,
    ) -> list[AlertEvent]:
        """Return the events after *cursor*, oldest first, at most *limit*.

        Of one *run* or of all; those after which the alert was in one *state*, or all. `change`
        begins with that state, up to a colon. An event that is damaged is left out, and the first
        of them is logged.
        """
        return self._select("cursor > ?", cursor, run, state, "ORDER BY cursor", limit)

    def latest(
        self,
        before: int,
        run: str | None = None,
        limit: int = PAGE_EVENTS,
        state: str | None = None,
    ) -> list[AlertEvent]:
        """Return the newest event of each alert, those with cursors below *before*, newest first.

        The rest is as with `after`.
        """
        return self._select(_LATEST, before, run, state, "ORDER BY cursor DESC", limit)

    def _select(
        self, where: str, cursor: int, run: str | None, state: str | None, order: str, limit: int
    ) -> list[AlertEvent]:
        values: list[int | str] = [cursor]
        if run is not None:
            where, values = f"{where} AND run = ?", [*values, run]
        if state is not None:
            where = f"{where} AND (state = ? OR substr(state, 1, ?) = ?)"
            values = [*values, state, len(state) + 1, f"{state}:"]
        query = f"SELECT {_COLUMNS} FROM alert_events AS own WHERE {where} {order}"  # noqa: S608 - literals
        with self._db.reading() as reader:
            # Not LIMIT: a page that is not full says that there are no more.
            rows = reader.rows(query, values)
            readable = (event for row in rows if (event := self._read(*row)) is not None)
            return list(islice(readable, limit))

    def of_alert(self, alert_id: str) -> list[AlertEvent]:
        """Return the events of one alert that are kept, oldest first; damaged ones are left out."""
        with self._db.reading() as reader:
            rows = reader.rows(
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
                reason = "its checksum is another one"
            elif not isinstance(alert, dict):
                reason = "it is no alert"
            else:
                return AlertEvent(cursor, run, alert)
        except (ValueError, TypeError) as error:
            reason = str(error)
        if not self._told:
            logger.warning("alert event %d is left out (told once): %s", cursor, reason)
        self._told = True
        return None
