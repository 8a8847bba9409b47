"""Records of the log near a place, for any thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradwatch_server.core.entries import Received
from gradwatch_server.storage.encoding import EncodedEntry, decode_entry
from gradwatch_server.storage.series_store import KeptRecord
from gradwatch_server.storage.sqlite.checksums import is_good_entry
from gradwatch_server.storage.sqlite.database import Database
from gradwatch_wire import Kind, Stats

_SELECT = (
    "SELECT log_offset, received_ns, kind, session, payload, checksum FROM log"
    " WHERE log_offset {} ? AND log_offset {} ? ORDER BY log_offset {}"
)


_OF_SESSION = _SELECT.format("<=", ">", "DESC").replace(
    " ORDER", " AND kind = ? AND session = ? ORDER"
)


class SQLiteRecords:
    """The statistics in the log, read over a connection of one's own."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def before(self, offset: int, most: int) -> Iterator[KeptRecord]:
        """Yield the statistics up to an offset, the newest first, of the last *most* entries."""
        yield from self._read(_SELECT.format("<=", ">", "DESC"), (offset, offset - most))

    def after(self, offset: int, most: int) -> Iterator[KeptRecord]:
        """Yield the statistics after an offset, oldest first, of the next *most* entries."""
        yield from self._read(_SELECT.format(">", "<=", "ASC"), (offset, offset + most))

    def of_session(self, session: bytes, offset: int, most: int) -> Iterator[KeptRecord]:
        """Yield those of one session, the newest first, of the last *most* entries."""
        values = (offset, offset - most, int(Kind.STATS), session)
        yield from self._read(_OF_SESSION, values)

    def _read(self, sql: str, values: Sequence[int | bytes]) -> Iterator[KeptRecord]:
        with self._db.reading() as connection:
            for offset, *columns, checksum in connection.execute(sql, values):
                encoded = EncodedEntry(*columns)
                if encoded.kind != Kind.STATS or not is_good_entry(encoded, checksum):
                    continue
                body = decode_entry(encoded).body
                if isinstance(body, Received) and isinstance(body.envelope.record, Stats):
                    session, stats = body.envelope.session, body.envelope.record
                    yield KeptRecord(offset, encoded.received_ns, session, stats)
