"""Alert events of a cluster: owners store them, readers on any node follow them by cursor.

Cursors come from one row that stays locked until its transaction ends. So there are none of what
was rolled back, and who sees one sees all before it: a reader that goes on from the newest cursor
it saw passes over nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from gradwatch_server.clock import Clock
from gradwatch_server.storage.event_decoder import EventDecoder
from gradwatch_server.storage.postgres.connections import Connection
from gradwatch_server.storage.postgres.database import BRIEF_S, Database, Fence
from gradwatch_server.storage.postgres.known_bytes import KnownBytes
from gradwatch_server.storage.store import PAGE_EVENTS, AlertEvent, EventSize, NewAlertEvent

_ADD: Final = """
    WITH taken AS (
        UPDATE alert_cursor SET newest = newest + %(count)s RETURNING newest - %(count)s AS before
    )
    INSERT INTO alert_events (cursor, partition, alert_id, state, run, body, stored_ns)
    SELECT before + place, %(partition)s, alert_id, state, run, body, %(now_ns)s
    FROM taken, unnest(%(ids)s::text[], %(changes)s::text[], %(runs)s::text[], %(bodies)s::text[])
    WITH ORDINALITY AS own (alert_id, state, run, body, place)
    RETURNING cursor
"""
"""All in one, for all other owners wait for that row until the transaction ends."""

_STORED: Final = """
    SELECT alert_id, state FROM alert_events
    JOIN unnest(%s::text[], %s::text[]) AS own (alert_id, state) USING (alert_id, state)
"""

_NUM_BYTES: Final = "octet_length(body) + octet_length(run) + 100"
"""Of a row with those of its indices, about; a long body is not read for it."""

_SIZE: Final = f"cursor, run, {_NUM_BYTES}"

_NOT_NEWEST: Final = "cursor < (SELECT max(cursor) FROM alert_events WHERE partition = %s)"

_OLDEST: Final = (
    f"SELECT {_SIZE}, stored_ns FROM alert_events"
    f" WHERE partition = %s AND {_NOT_NEWEST} ORDER BY cursor LIMIT %s"
)

_OF_RUN: Final = (
    f"SELECT {_SIZE} FROM alert_events"
    f" WHERE run = %s AND partition = %s AND {_NOT_NEWEST} ORDER BY cursor LIMIT %s"
)


class PostgresAlertReader:
    """The stored alert events, for any thread.

    Args:
        db: The database.
        partition: The partition whose events are read; None for those of all.
    """

    def __init__(self, db: Database, partition: int | None = None) -> None:
        self._db = db
        self._only = () if partition is None else (("partition = %s", partition),)
        self._decoder = EventDecoder()

    def newest(self) -> int:
        """Return the cursor of the newest event, 0 without any."""
        where, values = _where(self._only)
        select = f"SELECT coalesce(max(cursor), 0) FROM alert_events {where}"
        (cursor,) = self._db.row(select, *values)
        return int(cursor)

    def after(
        self,
        cursor: int,
        run: str | None = None,
        most: int = PAGE_EVENTS,
        state: str | None = None,
    ) -> list[AlertEvent]:
        """Return the events after *cursor*, oldest first, at most *most*; of one run or of all."""
        also = [*self._only]
        if run is not None:
            also.append(("run = %s", run))
        if state is not None:
            also.append(("(state || ':') ^@ (%s || ':')", state))
        found: list[AlertEvent] = []
        # A page that is not full says that there are no more, so that it is filled up.
        while (missing := most - len(found)) > 0:
            rows = self._page(cursor, also, missing)
            read = (self._decoder.decode(at, of, body) for at, of, body in rows)
            found += [event for event in read if event is not None]
            if len(rows) < missing:
                break
            cursor = rows[-1][0]
        return found

    def _page(self, cursor: int, also: Sequence[tuple[str, Any]], most: int) -> list[Any]:
        where, values = _where([("cursor > %s", cursor), *also])
        select = f"SELECT cursor, run, body FROM alert_events {where} ORDER BY cursor LIMIT %s"
        return self._db.rows(select, *values, most)

    def changes(self, run: str, after: int, most: int) -> list[tuple[int, NewAlertEvent]]:
        """Return up to *most* events of a run after a cursor with theirs, as they were added."""
        where, values = _where([*self._only, ("run = %s", run), ("cursor > %s", after)])
        rows = self._db.rows(
            f"SELECT cursor, alert_id, state, run, body FROM alert_events {where}"
            " ORDER BY cursor LIMIT %s",
            *(*values, most),
        )
        return [(cursor, NewAlertEvent(*own)) for cursor, *own in rows]

    def of_alert(self, alert_id: str) -> list[AlertEvent]:
        """Return the events of one alert that are kept, oldest first."""
        where, values = _where([*self._only, ("alert_id = %s", alert_id)])
        select = f"SELECT cursor, run, body FROM alert_events {where} ORDER BY cursor"
        read = (self._decoder.decode(*row) for row in self._db.rows(select, *values))
        return [event for event in read if event is not None]


class PostgresAlertEvents(PostgresAlertReader):
    """The events of one partition, for its owner.

    Args:
        db: The database.
        fence: The partition, and its epoch.
        clock: Gives the time at which an event is stored.
    """

    def __init__(self, db: Database, fence: Fence, clock: Clock) -> None:
        super().__init__(db, fence.partition)
        self._fence = fence
        self._clock = clock
        self._bytes = KnownBytes(self._measure)

    def add(self, events: Sequence[NewAlertEvent]) -> int:
        """Store each change of each alert once; return the newest cursor of all."""
        wanted: dict[tuple[str, str], NewAlertEvent] = {}
        for event in events:
            wanted.setdefault((event.alert_id, event.change), event)
        if not wanted:
            return self.newest()
        writing = self._db.writing(self._fence, BRIEF_S)
        with self._bytes.changing() as change, writing as connection:
            ids, changes = zip(*wanted, strict=True)
            for key in connection.execute(_STORED, (list(ids), list(changes))):
                del wanted[key]
            newest = self._insert(connection, list(wanted.values())) if wanted else 0
            change(sum(map(_num_bytes, wanted.values())))
        return newest or self.newest()

    def _insert(self, connection: Connection, events: Sequence[NewAlertEvent]) -> int:
        """Insert events and return the cursor of the last one."""
        values = {
            "count": len(events),
            "partition": self._fence.partition,
            "now_ns": self._clock.now_ns(),
            "ids": [event.alert_id for event in events],
            "changes": [event.change for event in events],
            "runs": [event.run for event in events],
            "bodies": [event.body for event in events],
        }
        return max(int(cursor) for (cursor,) in connection.execute(_ADD, values))

    def sizes(self, after: int, most: int) -> Iterator[EventSize]:
        """Yield the sizes of the events after a cursor, oldest first, at most *most*."""
        where, values = _where([*self._only, ("cursor > %s", after)])
        select = f"SELECT {_SIZE} FROM alert_events {where} ORDER BY cursor LIMIT %s"
        yield from (EventSize(*row) for row in self._db.rows(select, *values, most))

    def trim(self, before_ns: int, most: int) -> list[EventSize]:
        """Delete up to *most* of the events stored before a time, but not the newest of all."""
        own, gone = self._fence.partition, []
        # Each owner stored them in this order, so that the first that stays ends it.
        for *size, stored_ns in self._db.rows(_OLDEST, own, own, most):
            if stored_ns >= before_ns:
                break
            gone.append(EventSize(*size))
        self._delete(gone)
        return gone

    def trim_run(self, run: str, num_bytes: int, most: int) -> list[EventSize]:
        """Delete the oldest events of a run until they took so much."""
        gone: list[EventSize] = []
        for event in self._of_run(run, most):
            if num_bytes <= 0:
                break
            gone.append(event)
            num_bytes -= event.num_bytes
        self._delete(gone)
        return gone

    def remove_run(self, run: str, upto: int, most: int) -> int:
        """Delete up to *most* events of a run with cursors up to *upto*; return how many went."""
        gone = [event for event in self._of_run(run, most) if event.cursor <= upto]
        self._delete(gone)
        return len(gone)

    def _of_run(self, run: str, most: int) -> list[EventSize]:
        own = self._fence.partition
        return [EventSize(*row) for row in self._db.rows(_OF_RUN, run, own, own, most)]

    def _delete(self, gone: Sequence[EventSize]) -> None:
        if gone:
            with self._bytes.changing() as change, self._db.writing(self._fence) as connection:
                delete = "DELETE FROM alert_events WHERE cursor = ANY(%s)"
                connection.execute(delete, ([own.cursor for own in gone],))
                change(-sum(own.num_bytes for own in gone))

    def used_bytes(self) -> int:
        """Return about how much room all of them take."""
        return self._bytes.get()

    def _measure(self) -> int:
        where, values = _where(self._only)
        select = f"SELECT coalesce(sum({_NUM_BYTES}), 0) FROM alert_events {where}"
        (total,) = self._db.row(select, *values)
        return int(total)


def _where(conditions: Sequence[tuple[str, Any]]) -> tuple[str, list[Any]]:
    """Return a clause and its values."""
    clause = " AND ".join(condition for condition, _ in conditions)
    return f"WHERE {clause}" if clause else "", [value for _, value in conditions]


def _num_bytes(event: NewAlertEvent) -> int:
    return len(event.body.encode()) + len(event.run.encode()) + 100
