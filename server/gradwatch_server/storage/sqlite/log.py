"""The log: every accepted record and whatever the aggregator learnt, in one table."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Final, cast

from gradwatch_server.core.entries import Entry, Opened
from gradwatch_server.storage.encoding import (
    HEAD_KINDS,
    SESSION_HEAD_KINDS,
    EncodedEntry,
    decode_entry,
    encode_entry,
)
from gradwatch_server.storage.sqlite.checksums import check_entry, of_entry
from gradwatch_server.storage.sqlite.database import Database
from gradwatch_server.storage.store import EntrySize, Line
from gradwatch_wire import Kind

logger = logging.getLogger(__name__)

ROW_BYTES: Final = 40
"""About what a row takes beside its payload."""

_HEADS: Final = ", ".join(map(str, HEAD_KINDS))

MAX_VARIABLES: Final = 500
"""Values of one statement; SQLite takes at least 999."""


class SQLiteLog:
    """The table of entries."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.reset()

    def reset(self, last_offset: int | None = None) -> None:
        """Begin after an offset, or look anew at where the log ends."""
        if last_offset is None:
            (last_offset,) = self._db.row("SELECT coalesce(max(log_offset), 0) FROM log")
        self._last_offset = last_offset

    @property
    def last_offset(self) -> int:
        """Place of the newest entry, also if it was trimmed; 0 for an empty log."""
        return self._last_offset

    def skip_to(self, offset: int) -> None:
        """Give no entry a place up to *offset*: an empty table does not say what was in it."""
        self._last_offset = max(self._last_offset, offset)

    def append(self, lines: Sequence[Line]) -> None:
        """Write lines and commit them, all or none; `last_offset` is the last one's then."""
        rows = [
            (offset, own.received_ns, own.kind, own.session, own.payload, of_entry(own))
            for offset, own in enumerate(map(encode_entry, lines), self._last_offset + 1)
        ]
        with self._db.transaction():
            self._db.executemany("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)", rows)
        self._last_offset += len(rows)

    def entries(self, after: int = 0) -> Iterator[tuple[int, Entry]]:
        """Yield the entries after an offset with theirs, oldest first.

        A row that cannot be read is logged and passed over.
        """
        rows = self._db.rows(
            "SELECT log_offset, received_ns, kind, session, payload, checksum FROM log"
            " WHERE log_offset > ? ORDER BY log_offset",
            (after,),
        )
        for offset, *columns, checksum in rows:
            try:
                encoded = EncodedEntry(*columns)
                check_entry(encoded, checksum)
                entry = decode_entry(encoded)
            except Exception as error:  # noqa: BLE001 - a damaged row must not cost the next ones
                logger.warning("log line %d cannot be read: %s", offset, error)
            else:
                yield offset, entry

    def runs(self) -> set[str]:
        """Return the names of the runs of which there is a HELLO."""
        rows = self._db.rows(
            "SELECT received_ns, kind, session, payload, checksum FROM log WHERE kind = ?",
            (int(Kind.HELLO),),
        )
        names = set()
        for *columns, checksum in rows:
            with contextlib.suppress(Exception):  # `entries` tells of it
                encoded = EncodedEntry(*columns)
                check_entry(encoded, checksum)
                names.add(cast("Opened", decode_entry(encoded).body).hello.run)
        return names

    def sizes(self, after: int, upto: int, most: int) -> Iterator[EntrySize]:
        """Yield the sizes of the entries in `(after, upto]`, oldest first, at most *most*."""
        rows = self._db.rows(
            "SELECT log_offset, received_ns, coalesce(length(payload), 0), session, kind FROM log"
            " WHERE log_offset > ? AND log_offset <= ? ORDER BY log_offset LIMIT ?",
            (after, upto, most),
        )
        for offset, received_ns, num_bytes, session, kind in rows:
            is_head = kind in HEAD_KINDS
            yield EntrySize(offset, received_ns, num_bytes + ROW_BYTES, session, is_head)

    def trim(self, after: int, upto: int) -> None:
        """Delete the entries in `(after, upto]`, but not those that the rest is read with."""
        delete = "DELETE FROM log WHERE log_offset > ? AND log_offset <= ? AND kind NOT IN"
        with self._db.transaction():
            self._db.execute(f"{delete} ({_HEADS})", (after, upto))

    def delete(self, offsets: Sequence[int]) -> None:
        """Delete the entries at these places, whatever they are."""
        with self._db.transaction():
            rows = [(offset,) for offset in offsets]
            self._db.executemany("DELETE FROM log WHERE log_offset = ?", rows)

    def trim_sessions(self, sessions: Sequence[bytes], upto: int) -> None:
        """Delete HELLOs and manifests of sessions up to an offset."""
        with self._db.transaction():
            # Each statement reads all heads: they have no index, for few look for them.
            for first in range(0, len(sessions), MAX_VARIABLES):
                some = sessions[first : first + MAX_VARIABLES]
                marks = ", ".join("?" * len(some))
                self._db.execute(
                    f"DELETE FROM log WHERE log_offset <= ? AND kind IN (?, ?) AND session IN ({marks})",  # noqa: S608, E501 - marks only
                    (upto, *SESSION_HEAD_KINDS, *some),
                )
