"""What can still be read of a damaged file, taken over into a new one.

Tables are told by the columns of their rows, so that not even the schema has to be readable.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gradwatch_server.storage.checkpoints import OWN_PARTS, PARTS, SALVAGED
from gradwatch_server.storage.encoding import EncodedEntry
from gradwatch_server.storage.sqlite.checksums import is_good_entry, is_good_event, is_good_state
from gradwatch_server.storage.sqlite.pages import PageFile, Row, Value

logger = logging.getLogger(__name__)

BATCH_ROWS: Final = 500
"""Rows of one transaction: what is taken over stays if the disk is full then."""

_INSERTS: Final = {
    "log": "INSERT OR IGNORE INTO log VALUES (?, ?, ?, ?, ?, ?)",
    "alert_events": "INSERT OR IGNORE INTO alert_events VALUES (?, ?, ?, ?, ?, ?, ?)",
    # Runs come in the order of their rows.
    "saved_runs": "INSERT OR IGNORE INTO saved_runs (rowid, run, body) VALUES (?, ?, ?)",
    "saved_state": "INSERT OR IGNORE INTO saved_state VALUES (?, ?)",
    "saved_attempts": "INSERT OR IGNORE INTO saved_attempts VALUES (?, ?, ?)",
    "saved_frames": "INSERT OR IGNORE INTO saved_frames VALUES (?, ?, ?, ?, ?)",
    "series": "INSERT OR IGNORE INTO series VALUES (?, ?, ?, ?, ?)",
    "series_chunks": "INSERT OR IGNORE INTO series_chunks VALUES"
    " (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "series_tables": "INSERT OR IGNORE INTO series_tables VALUES (?, ?, ?, ?)",
}

_OF_SCHEMA: Final = ("table", "index")


@dataclass(frozen=True, slots=True)
class _Insert:
    """A row that is good, and where it belongs."""

    table: str
    values: tuple[Value, ...]


@dataclass(slots=True)
class Salvaged:
    """What became of a damaged file.

    Args:
        kept: Rows taken over, by table.
        num_pages: Pages that the file has, or should have.
        bad_pages: Those that could not be read.
        bad_rows: Rows that could not be read, or are not what was written.
        stopped: Why it ended early, empty if it did not.
    """

    kept: Counter[str] = field(default_factory=Counter)
    num_pages: int = 0
    bad_pages: int = 0
    bad_rows: int = 0
    stopped: str = ""

    @property
    def text(self) -> str:
        """All of it in words."""
        kept = self.kept
        text = (
            f"{kept['log']} entries of the log, {kept['alert_events']} alert events "
            f"and {kept['saved_runs']} saved runs were taken over from it; {self.bad_pages} "
            f"of its {self.num_pages} pages and {self.bad_rows} rows could not be read"
        )
        return f"{text}, and not all was read: {self.stopped}" if self.stopped else text


def salvage(damaged: Path, into: sqlite3.Connection, page_bytes: int) -> Salvaged:
    """Take over every row that is what was written.

    Whatever happens on the way is told in what is returned; what was taken over before stays.

    Args:
        damaged: The damaged file, which is only read.
        into: An empty database of the newest schema, in autocommit mode.
        page_bytes: Size of the pages, where the file does not say.
    """
    found = Salvaged()
    try:
        with PageFile(damaged, page_bytes) as file:
            try:
                _take_over(file, into, found)
            finally:
                found.num_pages, found.bad_pages = file.num_pages, file.bad_pages
                found.bad_rows += file.bad_rows
    except (sqlite3.Error, OSError) as error:
        found.stopped = str(error)
        _roll_back(into)
        with contextlib.suppress(sqlite3.Error):  # the disk may be full to the last page
            _finish(into, 0)
    except Exception as error:
        logger.exception("the damaged file %s was not read to its end", damaged)
        found.stopped = repr(error)
    finally:
        _roll_back(into)
    return found


def _roll_back(into: sqlite3.Connection) -> None:
    if into.in_transaction:
        into.execute("ROLLBACK")


def _take_over(file: PageFile, into: sqlite3.Connection, found: Salvaged) -> None:
    batch: list[_Insert] = []
    newest = 0
    for row in file.rows():
        match row.values:
            case ("alert_events", int(cursor)):  # sqlite_sequence
                newest = max(newest, cursor)
                continue
            case (str(what), str(), str(), _, _) if what in _OF_SCHEMA:
                continue
        insert = _insert_of(row)
        if insert is None:
            found.bad_rows += 1
            continue
        batch.append(insert)
        if len(batch) == BATCH_ROWS:
            _write(batch, into, found)
            batch = []
    _write(batch, into, found)
    _finish(into, newest)


def _write(batch: list[_Insert], into: sqlite3.Connection, found: Salvaged) -> None:
    into.execute("BEGIN IMMEDIATE")
    taken = Counter[str]()
    for own in batch:
        taken[own.table] += into.execute(_INSERTS[own.table], own.values).rowcount
    into.execute("COMMIT")
    found.kept += taken


def _finish(into: sqlite3.Connection, newest: int) -> None:
    into.execute("BEGIN IMMEDIATE")
    into.execute("INSERT OR REPLACE INTO saved_state VALUES (?, ?)", (SALVAGED, b"\1"))
    # A run that has the name of a part: nobody can tell which of the two a row is of.
    into.execute(
        f"DELETE FROM saved_state WHERE part IN ({', '.join('?' * len(PARTS))})"  # noqa: S608 - marks only
        " AND part IN (SELECT run FROM saved_attempts)",
        PARTS,
    )
    # What belongs to nothing would be taken for that of another attempt.
    into.execute("DELETE FROM series_chunks WHERE series NOT IN (SELECT id FROM series)")
    into.execute("DELETE FROM series_tables WHERE chunk NOT IN (SELECT id FROM series_chunks)")
    (last,) = into.execute("SELECT coalesce(max(cursor), 0) FROM alert_events").fetchone()
    into.execute("DELETE FROM sqlite_sequence WHERE name = 'alert_events'")
    values = ("alert_events", max(last, newest))
    into.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", values)
    into.execute("COMMIT")


def _insert_of(row: Row) -> _Insert | None:
    """Return where a row belongs; None if it belongs nowhere, or is not what was written."""
    match row.values:
        case (None, int(at_ns), int(kind), bytes() | None, bytes() | None, *_):
            return _entry(row, at_ns, kind)
        case (None, str(), str(), str(), str(), *_):
            return _event(row)
        case (None, str(), int(), int(), bytes(layers)) if is_good_state(layers):
            return _Insert("series", (row.rowid, *row.values[1:]))
        case (None, int(), int(), int(), *_, bytes(head)) if is_good_state(head):
            return _Insert("series_chunks", (row.rowid, *row.values[1:]))
        case (None, int(), str(), bytes()):  # its blocks have checksums, and are read one by one
            return _Insert("series_tables", (row.rowid, *row.values[1:]))
        case _:
            return _saved(row)


def _entry(row: Row, at_ns: int, kind: int) -> _Insert | None:
    _, _, _, session, payload, *rest = row.values
    checksum = rest[0] if rest else None
    entry = EncodedEntry(at_ns, kind, session, payload)  # type: ignore[arg-type]  # bytes or None
    if row.rowid < 1 or not is_good_entry(entry, checksum):
        return None
    return _Insert("log", (row.rowid, at_ns, kind, session, payload, checksum))


def _event(row: Row) -> _Insert | None:
    _, alert_id, change, run, body, *rest = row.values
    stored_ns, checksum = [*rest, None, None][:2]
    event = str(alert_id), str(change), str(run), str(body)
    if row.rowid < 1 or not is_good_event(*event, checksum=checksum):
        return None
    stored_ns = stored_ns if isinstance(stored_ns, int) else time.time_ns()
    return _Insert("alert_events", (row.rowid, *event, stored_ns, checksum))


def _saved(row: Row) -> _Insert | None:
    match row.values:
        case (str(name), bytes(body)) if is_good_state(body):
            if name in PARTS:
                return _Insert("saved_state", row.values)
            return None if name in OWN_PARTS else _Insert("saved_runs", (row.rowid, name, body))
        case (str(), int(), bytes(body)) if is_good_state(body):
            return _Insert("saved_attempts", row.values)
        case (str(), int(), int(), bytes(steps), bytes()) if is_good_state(steps):
            return _Insert("saved_frames", row.values)  # a bad body costs its frames only
    return None
