"""The rows of a damaged file that plain SELECTs return, copied into a new file.

SQLite gives up at the first page that it cannot read. So each table is read by ranges of row
numbers from both ends, and the gap that an error leaves is halved until it is one row wide.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import struct
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

from gradwatch_server.storage.checksums import is_good_event, is_good_row, is_good_state, text_of
from gradwatch_server.storage.sqlite.files import num_bytes_of, side_of

logger = logging.getLogger(__name__)

BATCH_ROWS: Final = 500
"""Rows of one transaction: what is taken over stays if the disk is full then."""

MAX_GAPS: Final = 8_000
"""Gaps of one table that are searched, in a second; a bad page of 3,000 rows has 6,000."""

_LAST_ROW: Final = (1 << 63) - 1

_WIDE: Final = 1 << 24
"""A gap wider than this reaches beyond the end of its table: rows are at its beginning."""

Row = tuple[Any, ...]
"""The number of a row, and its other columns."""

Gap = tuple[int, int]
"""The first and the last of the row numbers between which nothing could be read."""


@dataclass(frozen=True, slots=True)
class _Table:
    """A table that is taken over.

    Args:
        columns: All but the one that is the number of the row.
    """

    name: str
    columns: str
    is_good: Callable[..., bool]


def _is_good_log(*row: Any) -> bool:
    run, is_head, first, last, received_ns, _, body, checksum = row
    return is_good_row(run, is_head, first, last, received_ns, body, checksum)


def _is_good_alert(*row: Any) -> bool:
    alert_id, change, run, body, _, _, checksum = row
    return is_good_event(alert_id, change, run, body, checksum)


def _is_good_saved(*row: Any) -> bool:
    return is_good_state(row[-1])


_TABLES: Final = (
    _Table(
        "log", "run, is_head, first, last, received_ns, num_bytes, body, checksum", _is_good_log
    ),
    _Table(
        "alert_events", "alert_id, state, run, body, stored_ns, num_bytes, checksum", _is_good_alert
    ),
    _Table("forgotten_runs", "run, position, attempts, forgotten_ns", lambda *_: True),
    _Table("saved_state", "part, body", _is_good_saved),
    _Table("saved_runs", "run, summary, body", _is_good_saved),
    _Table("saved_attempts", "run, attempt, body", _is_good_saved),
    _Table("curves", "run, attempt, num_bytes, layers", _is_good_saved),
    # The groups of a body have checksums, and are read one by one: a bad one costs its items only.
    _Table(
        "blocks",
        "curve, level, number, epoch, first_step, last_step, entries, is_closed, upto, num_bytes,"
        " body, head",
        _is_good_saved,
    ),
)


@dataclass(slots=True)
class Salvaged:
    """Result of taking over a damaged file.

    Args:
        bad_rows: Rows that could not be read, or are not what was written.
        torn: Tables whose end could not be read: nobody can say how many rows that had.
        stopped: Why it ended early, empty if it did not.
    """

    kept: Counter[str] = field(default_factory=Counter)
    bad_rows: int = 0
    torn: list[str] = field(default_factory=list)
    stopped: str = ""

    @property
    def text(self) -> str:
        kept = self.kept
        text = (
            f"{kept['log']} rows of the log, {kept['alert_events']} alert events "
            f"and {kept['saved_runs']} saved runs were taken over from it; at least "
            f"{self.bad_rows} rows could not be read"
        )
        if self.torn:
            text += f", and the end of {', '.join(self.torn)}"
        return f"{text}, and not all was read: {self.stopped}" if self.stopped else text


def salvage(damaged: Path, into: sqlite3.Connection) -> Salvaged:
    """Take over every row that can be read and is what was written.

    Whatever happens on the way is told in what is returned; what was taken over before stays.

    Args:
        damaged: The damaged file, which is only read, with the WAL beside it.
        into: An empty database of this schema, in autocommit mode.
    """
    salvaged = Salvaged()
    try:
        with contextlib.closing(_open(damaged)) as source:
            # Raises if the header or the schema is lost: no table is found then.
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
            for table in _TABLES:
                _copy_table(source, table, into, salvaged)
    except sqlite3.Error as error:
        salvaged.stopped = str(error)
    except Exception as error:
        logger.exception("the damaged file %s was not read to its end", damaged)
        salvaged.stopped = repr(error)
    _roll_back(into)
    with contextlib.suppress(sqlite3.Error):  # the disk may be full to the last page
        _finish(into)
    _roll_back(into)
    return salvaged


def _open(damaged: Path) -> sqlite3.Connection:
    # Without a WAL nothing needs to be made beside the file to read it.
    mode = "mode=ro" if num_bytes_of(side_of(damaged, "-wal")) else "immutable=1"
    connection = sqlite3.connect(f"{damaged.resolve().as_uri()}?{mode}", uri=True)
    connection.text_factory = text_of
    # Else SQLite reads nothing of a file that is shorter than its header says.
    connection.execute("PRAGMA writable_schema=ON")
    return connection


def _roll_back(into: sqlite3.Connection) -> None:
    if into.in_transaction:
        into.execute("ROLLBACK")


def _copy_table(
    source: sqlite3.Connection, table: _Table, into: sqlite3.Connection, salvaged: Salvaged
) -> None:
    marks = ", ?" * (table.columns.count(",") + 1)
    insert = f"INSERT OR IGNORE INTO {table.name} (rowid, {table.columns}) VALUES (?{marks})"  # noqa: S608 - literals
    reader = _Reader(source, table)
    rows = reader.rows()
    while batch := list(islice(rows, BATCH_ROWS)):
        good = [row for row in batch if _is_good(table, row)]
        into.execute("BEGIN IMMEDIATE")
        taken = sum(into.execute(insert, row).rowcount for row in good)
        into.execute("COMMIT")
        salvaged.kept[table.name] += taken
        salvaged.bad_rows += len(batch) - taken
    salvaged.bad_rows += reader.num_unread()
    if reader.is_torn:
        salvaged.torn.append(table.name)


def _is_good(table: _Table, row: Row) -> bool:
    try:
        return table.is_good(*row[1:])
    except (TypeError, ValueError, struct.error):  # not even its types are right
        return False


class _Reader:
    """Reads the rows of one table, whatever is broken between them."""

    def __init__(self, source: sqlite3.Connection, table: _Table) -> None:
        self._source = source
        self._select = (
            f"SELECT rowid, {table.columns} FROM {table.name}"  # noqa: S608 - literals
            " WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
        )
        self._name = table.name
        self._unread: list[Gap] = []
        self._end = 0  # the number of the last row
        self._num_read = 0
        self._has_failed = False

    def rows(self) -> Iterator[Row]:
        """Yield the rows that can be read; after an error not in their order."""
        for row in self._look_into_gaps():
            self._end = max(self._end, row[0])
            self._num_read += 1
            yield row

    def _look_into_gaps(self) -> Iterator[Row]:
        gaps = deque([(1, _LAST_ROW)])
        for _ in range(MAX_GAPS):
            if not gaps:
                break
            first, last = yield from self._read_ends(*gaps.popleft())
            if first < last:
                gaps.extend(_pieces(first, last))
            elif first == last:
                self._unread.append((first, last))
        self._unread += gaps

    def _read_ends(self, first: int, last: int) -> Generator[Row, None, Gap]:
        """Yield rows from both ends of a gap up to an error each; return the gap between them."""
        try:
            for row in self._in_order(first, last, 1):
                first = row[0] + 1
                yield row
        except sqlite3.Error:
            self._has_failed = True
            with contextlib.suppress(sqlite3.Error):
                for row in self._in_order(first, last, -1):
                    last = row[0] - 1
                    yield row
        else:
            first = last + 1  # nothing is left between them
        return first, last

    def _in_order(self, first: int, last: int, step: int) -> Iterator[Row]:
        """Yield rows, each once the next one shows that its number is not a damaged one."""
        order = "ASC" if step > 0 else "DESC"
        held: Row | None = None
        for row in self._source.execute(f"{self._select} {order}", (first, last)):
            if held is not None:
                if (row[0] - held[0]) * step <= 0:
                    msg = "a row is out of its place"
                    raise sqlite3.DatabaseError(msg)
                yield held
            held = row
        if held is not None:
            yield held

    def num_unread(self) -> int:
        """Return how many rows could not be read: by an index, or numbers before the last row."""
        if not self._has_failed:
            return 0
        gaps = [(first, min(last, self._end)) for first, last in self._unread]
        num_missing = sum(last - first + 1 for first, last in gaps if first <= last)
        with contextlib.suppress(sqlite3.Error):
            (num_rows,) = self._source.execute(f"SELECT count(*) FROM {self._name}").fetchone()  # noqa: S608 - a literal
            return max(num_missing, int(num_rows) - self._num_read)
        return num_missing

    @property
    def is_torn(self) -> bool:
        """State of the end: true if there may be rows after the last one that could be read."""
        return any(last > self._end for _, last in self._unread)


def _pieces(first: int, last: int) -> Iterator[Gap]:
    """Yield the halves of a gap; of a wide one pieces of which each is twice the one before."""
    if last - first < _WIDE:
        middle = (first + last) // 2
        yield from ((first, middle), (middle + 1, last))
        return
    num_rows = 1
    while first <= last:
        yield first, min(first + num_rows - 1, last)
        first, num_rows = first + num_rows, 2 * num_rows


def _finish(into: sqlite3.Connection) -> None:
    into.execute("BEGIN IMMEDIATE")
    # What belongs to nothing would be taken for that of another attempt.
    into.execute("DELETE FROM blocks WHERE curve NOT IN (SELECT id FROM curves)")
    into.execute("COMMIT")
