"""Records of the log near an entry, for any thread."""

from __future__ import annotations

from collections.abc import Iterator

from gradwatch_server.core.entries import Received
from gradwatch_server.storage.encoding import (
    EncodedEntry,
    NumberedEntry,
    decode_entry,
    unpack_entries,
)
from gradwatch_server.storage.series_store import KeptRecord
from gradwatch_server.storage.sqlite.checksums import is_good_row
from gradwatch_server.storage.sqlite.database import Database
from gradwatch_wire import Kind, Stats

_ROWS = (
    "SELECT run, is_head, first, last, received_ns, body, checksum FROM log"
    " WHERE run = ? AND is_head = 0 AND last > ?"
)


class SQLiteRecords:
    """The statistics in the log, read over a connection of one's own."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def before(
        self, run: str, number: int, most: int, session: bytes | None = None
    ) -> Iterator[KeptRecord]:
        """Yield the statistics up to an entry, the newest first, of the last *most* entries."""
        # A row that begins before the entry and ends after it is the last of these at most.
        rows = self._rows(f"{_ROWS} AND first <= ? ORDER BY last DESC", run, number - most, number)
        for entries in rows:
            for own, encoded in reversed(entries):
                if number - most < own <= number and session in (None, encoded.session):
                    yield from _records(own, encoded)

    def after(self, run: str, number: int, most: int) -> Iterator[KeptRecord]:
        """Yield the statistics after an entry, oldest first, of the next *most* entries."""
        rows = self._rows(f"{_ROWS} AND first <= ? ORDER BY last", run, number, number + most)
        for entries in rows:
            for own, encoded in entries:
                if number < own <= number + most:
                    yield from _records(own, encoded)

    def _rows(self, sql: str, run: str, after: int, upto: int) -> Iterator[list[NumberedEntry]]:
        with self._db.reading() as connection:
            for row in connection.execute(sql, (run, after, upto)):
                if is_good_row(*row):
                    yield unpack_entries(row[5])


def _records(number: int, encoded: EncodedEntry) -> Iterator[KeptRecord]:
    """Yield the record of an entry, if it is statistics."""
    if encoded.kind != Kind.STATS:
        return
    body = decode_entry(encoded).body
    if isinstance(body, Received) and isinstance(body.envelope.record, Stats):
        session, stats = body.envelope.session, body.envelope.record
        yield KeptRecord(number, encoded.received_ns, session, stats)
