"""The SQLite file of a data directory, read beside the aggregator that writes it."""

from __future__ import annotations

from pathlib import Path

from gradwatch_server.clock import Clock
from gradwatch_server.storage.encoding import EncodedEntry
from gradwatch_server.storage.sqlite.alert_events import SQLiteAlertEvents
from gradwatch_server.storage.sqlite.checksums import is_good_entry
from gradwatch_server.storage.sqlite.read_only import ReadOnlyDatabase
from gradwatch_server.storage.sqlite.saved_state import SQLiteSavedState
from gradwatch_server.storage.sqlite.series import SQLiteSeries
from gradwatch_server.storage.sqlite.store import DATABASE_NAME


class SQLiteHistory:
    """Log, alert events and saved state over a connection that cannot write."""

    def __init__(self, directory: Path) -> None:
        """Open the file of a data directory.

        Raises:
            StorageError: If there is none, or it is not of this version.
        """
        self._db = ReadOnlyDatabase(directory / DATABASE_NAME)
        self._alert_events = SQLiteAlertEvents(self._db, Clock())
        self._state = SQLiteSavedState(self._db)
        self._series = SQLiteSeries(self._db)

    @property
    def name(self) -> str:
        """The path of the file."""
        return self._db.name

    @property
    def alert_events(self) -> SQLiteAlertEvents:
        """What readers were told of alerts."""
        return self._alert_events

    @property
    def state(self) -> SQLiteSavedState:
        """What a restart begins with."""
        return self._state

    @property
    def series(self) -> SQLiteSeries:
        """The curves, of which nothing can be written."""
        return self._series

    def span(self) -> tuple[int, int]:
        """Return the places of the oldest and the newest entry of the log, (0, 0) without any."""
        found = "SELECT coalesce(min(log_offset), 0), coalesce(max(log_offset), 0) FROM log"
        first, last = self._db.row(found)
        return int(first), int(last)

    def page(self, after: int, most: int) -> list[tuple[int, EncodedEntry | None]]:
        """Return up to *most* entries after an offset with theirs; None for a damaged one."""
        rows = self._db.rows(
            "SELECT log_offset, received_ns, kind, session, payload, checksum FROM log"
            " WHERE log_offset > ? ORDER BY log_offset LIMIT ?",
            (after, most),
        )
        found = [(offset, EncodedEntry(*columns), checksum) for offset, *columns, checksum in rows]
        return [(at, entry if is_good_entry(entry, own) else None) for at, entry, own in found]

    def close(self) -> None:
        """Close the file."""
        self._db.close()
