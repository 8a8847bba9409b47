"""The log: each record that was accepted and whatever the aggregator learnt, run by run.

A row has the entries of one run that were committed together, packed as a whole. Heads are the
entries that the rest is read with: beginnings, HELLOs, manifests, settings. They have rows of their
own, which stay when the others are trimmed.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter
from typing import Final

from gradwatch_server.core.entries import Entry, Received
from gradwatch_server.core.state_codec import decode, encode
from gradwatch_server.storage.checksums import check_row, is_good_row, of_row
from gradwatch_server.storage.database import Database
from gradwatch_server.storage.encoding import (
    HEAD_KINDS,
    EncodedEntry,
    NumberedEntry,
    decode_entry,
    encode_entry,
    pack_entries,
    unpack_entries,
)
from gradwatch_server.storage.rows import KeptRecord, LogEntry, LogRow
from gradwatch_server.storage.saved_state import SAVE_PART
from gradwatch_wire import Kind, Stats

logger = logging.getLogger(__name__)

ROW_BYTES: Final = 100
"""About what a row takes beside its body, its index included."""

BODY_BYTES: Final = 1 << 20
"""Entries of one row, before they are packed: more leave the cache of the processor."""

_LAST_ROW: Final = "last_row"
"""Part of the saved state: the number of the newest row, if that was deleted."""

_NO_END: Final = 1 << 62
"""A number that no entry has."""

_INSERT: Final = (
    "INSERT INTO log (id, run, is_head, first, last, received_ns, num_bytes, body, checksum)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
)
"""Statement that writes a row. The row is there already where the answer to its commit was lost."""

_ROWS = (
    "SELECT run, is_head, first, last, received_ns, body, checksum FROM log"
    " WHERE run = ? AND is_head = 0 AND last > ?"
)


class Records:
    """The statistics in the log of a run, for any thread, without those that are trimmed."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def before(
        self, run: str, number: int, limit: int, session: bytes | None = None
    ) -> Iterator[KeptRecord]:
        """Yield the statistics up to an entry, the newest first, of the last *limit* entries.

        Of one *session*, or of all.
        """
        # A row that begins before the entry and ends after it is the last of these at most.
        rows = self._rows(f"{_ROWS} AND first <= ? ORDER BY last DESC", run, number - limit, number)
        for entries in rows:
            for index, encoded in reversed(entries):
                if number - limit < index <= number and session in (None, encoded.session):
                    yield from _records(index, encoded)

    def after(self, run: str, number: int, limit: int) -> Iterator[KeptRecord]:
        """Yield the statistics after an entry, oldest first, of the next *limit* entries."""
        rows = self._rows(f"{_ROWS} AND first <= ? ORDER BY last", run, number, number + limit)
        for entries in rows:
            for index, encoded in entries:
                if number < index <= number + limit:
                    yield from _records(index, encoded)

    def _rows(self, sql: str, run: str, after: int, upto: int) -> Iterator[list[NumberedEntry]]:
        with self._db.reading() as reader:
            for row in reader.rows(sql, (run, after, upto)):
                if is_good_row(*row):
                    yield unpack_entries(row[5])


def _records(number: int, encoded: EncodedEntry) -> Iterator[KeptRecord]:
    if encoded.kind != Kind.STATS:
        return
    body = decode_entry(encoded).body
    if isinstance(body, Received) and isinstance(body.envelope.record, Stats):
        session, stats = body.envelope.session, body.envelope.record
        yield KeptRecord(number, encoded.received_ns, session, stats)


class Log:
    """The log of each run: its entries, numbered from 1 as they were committed."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._last: dict[str, int] = {}
        self._least: dict[str, int] = {}  # numbers that saved states stand for
        self._before: tuple[int, dict[str, int]] = (0, {})  # what was last at `mark`
        self.reset()

    def mark(self) -> None:
        """Note where the logs end, for `roll_back`."""
        self._before = self.last_row, {}

    def roll_back(self) -> None:
        """Go back to where the logs ended at the mark."""
        # The table does not tell: the newest rows of a log may be trimmed.
        self.last_row, last = self._before
        self._last |= last

    def reset(self) -> None:
        """Look anew at where the logs end."""
        self._last.clear()
        (newest,) = self._db.row("SELECT coalesce(max(id), 0) FROM log")
        deleted = self._db.row("SELECT body FROM saved_state WHERE part = ?", (_LAST_ROW,))
        self.last_row = int(newest)
        with contextlib.suppress(ValueError):  # damaged
            self.last_row = max(self.last_row, decode(deleted[0], int) if deleted else 0)

    def runs(self) -> list[str]:
        """Return the names of the runs that have entries, those first that began first."""
        rows = self._db.rows("SELECT run FROM log GROUP BY run ORDER BY min(id)")
        return [name for (name,) in rows]

    def last(self, run: str) -> int:
        """Return the number of the newest entry of a run, also if that was trimmed."""
        known = self._last.get(run)
        if known is None:
            (stored,) = self._db.row(
                "SELECT coalesce(max(number), 0) FROM ("
                " SELECT max(last) AS number FROM log WHERE run = ? AND is_head = 0 UNION ALL"
                " SELECT max(last) FROM log WHERE run = ? AND is_head = 1 UNION ALL"
                " SELECT position FROM forgotten_runs WHERE run = ?) AS known",
                (run, run, run),
            )
            known = self._last[run] = max(int(stored), self._least.get(run, 0))
        return known

    def skip_to(self, run: str, number: int) -> None:
        """Give no entry of a run a number up to this one: what had it may be trimmed."""
        self._least[run] = number
        self._last.pop(run, None)

    def append(self, lines: Sequence[LogEntry]) -> None:
        """Write lines and commit them, all or none."""
        groups: dict[tuple[str, bool], list[NumberedEntry]] = defaultdict(list)
        last: dict[str, int] = {}
        for line in lines:
            number = last[line.run] = last.get(line.run, self.last(line.run)) + 1
            encoded = encode_entry(line)
            groups[line.run, encoded.kind in HEAD_KINDS].append((number, encoded))
        if not self._db.is_writing:
            self.mark()
        before = {run: self.last(run) for run in last}
        try:
            with self._db.transaction():
                for (run, is_head), entries in groups.items():
                    self._insert(run, is_head=is_head, entries=entries)
        except BaseException:
            self.roll_back()
            raise
        self._before[1].update(before)
        self._last |= last

    def _insert(self, run: str, *, is_head: bool, entries: Sequence[NumberedEntry]) -> None:
        for some in _pieces(entries):
            body = pack_entries(some)
            facts = (run, int(is_head), some[0][0], some[-1][0], some[-1][1].received_ns)
            row = (*facts, len(body) + ROW_BYTES, body, of_row(*facts, body))
            self._db.execute(_INSERT, (self.last_row + 1, *row))
            self.last_row += 1

    def entries(self, run: str, after: int = 0) -> Iterator[tuple[int, Entry]]:
        """Yield the entries of a run after a number with theirs, oldest first.

        Rows that cannot be read by themselves are logged and passed over. If more is damaged than
        that, it is an error: a log that ended early would be taken for the truth.
        """
        both = (self._read(run, after, is_head=is_head) for is_head in (True, False))
        for number, encoded in heapq.merge(*both, key=itemgetter(0)):
            try:
                entry = decode_entry(encoded)
            except Exception as error:  # noqa: BLE001 - a damaged entry must not cost the next ones
                logger.warning("entry %d of run %s cannot be read: %s", number, run, error)
            else:
                yield number, entry

    def _read(self, run: str, after: int, *, is_head: bool) -> Iterator[NumberedEntry]:
        rows = self._db.rows(
            "SELECT run, is_head, first, last, received_ns, body, checksum FROM log"
            " WHERE run = ? AND is_head = ? AND last > ? ORDER BY last",
            (run, int(is_head), after),
        )
        for row in rows:
            try:
                check_row(*row)
                entries = unpack_entries(row[5])
            except Exception as error:  # noqa: BLE001 - a damaged row must not cost the next ones
                logger.warning(
                    "entries %s to %s of run %s cannot be read: %s", row[2], row[3], run, error
                )
            else:
                yield from (entry for entry in entries if entry[0] > after)

    def oldest(self, after: int, limit: int) -> list[LogRow]:
        """Return up to *limit* rows of all runs after a row, oldest first, without heads."""
        rows = self._db.rows(
            "SELECT id, run, last, received_ns, num_bytes FROM log"
            " WHERE id > ? AND is_head = 0 ORDER BY id LIMIT ?",
            (after, limit),
        )
        return [LogRow(*row) for row in rows]

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each run, without heads."""
        sums = "SELECT run, sum(num_bytes) FROM log WHERE is_head = 0 GROUP BY run"
        return {run: int(num_bytes) for run, num_bytes in self._db.rows(sums)}

    def delete(self, rows: Sequence[int]) -> None:
        with self._db.transaction():
            self._db.executemany("DELETE FROM log WHERE id = ?", [(number,) for number in rows])
            if self.last_row in rows:  # the table does not tell any more that there was one
                self._db.execute(SAVE_PART, (_LAST_ROW, encode(self.last_row)))

    def trim(self, run: str, upto: int, num_bytes: int, limit: int) -> int:
        """Delete the oldest rows of a run, but no heads, until they took so much.

        Returns:
            The bytes that went.
        """
        rows = self._db.rows(
            "SELECT id, num_bytes FROM log WHERE run = ? AND is_head = 0 AND last <= ?"
            " ORDER BY last LIMIT ?",
            (run, upto, limit),
        )
        gone: list[int] = []
        freed = 0
        for number, size in rows:
            if freed >= num_bytes:
                break
            gone.append(number)
            freed += size
        self.delete(gone)
        return freed

    def trim_heads(self, run: str, sessions: Collection[bytes] | None) -> None:
        """Delete the heads of a run with which nothing is read any more.

        These are older than its oldest row, and of none of the *sessions* that are in memory; all
        if the run is not. Settings go with the last of the run.
        """
        rows = self._db.rows(
            "SELECT id, body FROM log WHERE run = ? AND is_head = 1 AND last < coalesce("
            "(SELECT min(first) FROM log WHERE run = ? AND is_head = 0), ?)",
            (run, run, _NO_END),
        )
        gone = [
            number for number, body in rows if sessions is None or _is_of_others(body, sessions)
        ]
        if gone:
            self.delete(gone)

    def remove(self, run: str, upto: int, limit: int) -> bool:
        """Delete up to *limit* rows of a run, heads too; return whether there were any."""
        rows = self._db.rows(
            "SELECT id FROM log WHERE run = ? AND last <= ? LIMIT ?", (run, upto, limit)
        )
        gone = [number for (number,) in rows]
        if gone:
            self.delete(gone)
        return bool(gone)


def _is_of_others(body: bytes, sessions: Collection[bytes]) -> bool:
    """Tell whether all entries of a row are of sessions, and none of these."""
    try:
        entries = unpack_entries(body)
    except Exception:  # noqa: BLE001 - `entries` tells of it
        return False
    return all(entry.session is not None and entry.session not in sessions for _, entry in entries)


def _pieces(entries: Sequence[NumberedEntry]) -> Iterator[Sequence[NumberedEntry]]:
    """Yield entries in pieces of at most `BODY_BYTES`, of one entry at least."""
    first = size = 0
    for index, (_, entry) in enumerate(entries):
        size += len(entry.payload or b"")
        if size > BODY_BYTES and index > first:
            yield entries[first:index]
            first, size = index, len(entry.payload or b"")
    yield entries[first:]
