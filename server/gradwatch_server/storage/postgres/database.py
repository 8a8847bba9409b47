"""A PostgreSQL database: the connection that writes, and those that read beside it.

The connection that writes holds an advisory lock, so that one aggregator at a time has the tables.
"""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from gradwatch_server.clock import Clock
from gradwatch_server.storage.postgres.schema import SCHEMA, migrate
from gradwatch_server.storage.rows import Loss, StorageError, StorageFault
from gradwatch_server.storage.saved_state import SAVE_PART
from gradwatch_server.storage.store import Store

PAGE_BYTES: Final = 8_192

LOCK_S: Final = 3.0
"""Time in which PostgreSQL lets go of what a killed aggregator had."""

_WRITER: Final = 0x6772_6164_7761_7465
"""The advisory lock of the aggregator that writes: `gradwate` in ASCII."""

_MARK: Final = "writer"
"""Part of the saved state by which the aggregator knows that no other one had the tables."""

_FAULTS: Final = {
    "53100": StorageFault.FULL,  # disk_full
    "XX001": StorageFault.DAMAGED,  # data_corrupted
    "XX002": StorageFault.DAMAGED,  # index_corrupted
    "40001": StorageFault.BUSY,  # serialization_failure
    "40P01": StorageFault.BUSY,  # deadlock_detected
    "55P03": StorageFault.BUSY,  # lock_not_available
}
"""By SQLSTATE."""

_USED: Final = " + ".join(
    f"(SELECT coalesce(sum(num_bytes), 0) FROM {table})"  # noqa: S608 - a literal
    for table in ("log", "alert_events", "curves")
)


@contextlib.contextmanager
def storage_errors() -> Iterator[None]:
    """Raise each error of PostgreSQL inside as a `StorageError` with the same words."""
    try:
        yield
    except psycopg.Error as error:
        state = error.sqlstate or ""  # none where there is no connection
        is_cut = state[:2] in ("", "08", "57")
        fault = _FAULTS.get(state, StorageFault.BUSY if is_cut else StorageFault.FAILED)
        text = " ".join(str(error).split()) or "the connection is lost"
        if fault is StorageFault.FULL:
            text = f"the disk of PostgreSQL is full: {text}"
        raise StorageError(text, fault) from error


@lru_cache(maxsize=256)
def _of_psycopg(sql: str) -> bytes:
    """Return a statement with the placeholders of psycopg."""
    return sql.replace("%", "%%").replace("?", "%s").encode()


class PostgresReader:
    """A connection that reads."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def row(self, sql: str, values: Any = ()) -> Any:
        """Return the first row that a statement finds, None if there is none."""
        return self._find(sql, values).fetchone()

    def rows(self, sql: str, values: Any = ()) -> Iterator[Any]:
        """Yield the rows that a statement finds."""
        yield from self._find(sql, values).fetchall()

    def _find(self, sql: str, values: Any) -> psycopg.Cursor[Any]:
        with storage_errors():
            return self._connection.execute(_of_psycopg(sql), values, binary=True)

    def part(self, table: str, column: str, place: int, offset: int, length: int) -> bytes:
        """Return bytes of a value from an offset on, of the row whose id is *place*."""
        select = f"SELECT substr({column}, ?, ?) FROM {table} WHERE id = ?"  # noqa: S608
        found = self.row(select, (offset + 1, min(length, 1 << 30), place))
        return b"" if found is None else bytes(found[0])


class PostgresDatabase(PostgresReader):
    """The connection that writes. One thread at a time may use it."""

    loss: Loss | None = None
    page_bytes = PAGE_BYTES

    def __init__(self, url: str) -> None:
        """Make the tables where they are missing, and take them.

        Args:
            url: `postgresql://user:password@host:port/database`.

        Raises:
            StorageError: If another aggregator has them, or PostgreSQL refuses.
        """
        migrate(url)
        self._url = url
        self.is_writing = False
        self._idle: queue.LifoQueue[psycopg.Connection[Any]] = queue.LifoQueue()
        super().__init__(self._take())
        self._mark = os.urandom(16)
        self.execute(SAVE_PART, (_MARK, self._mark))

    @property
    def name(self) -> str:
        """The address of the database, without a password."""
        own = conninfo_to_dict(self._url)
        port = own.get("port", 5432)
        return f"postgresql://{own.get('host', 'localhost')}:{port}/{own.get('dbname', '')}"

    def _connect(self) -> psycopg.Connection[Any]:
        with storage_errors():
            connection = psycopg.connect(self._url, autocommit=True)
            connection.execute(f"SET search_path TO {SCHEMA}".encode())
        return connection

    def _take(self) -> psycopg.Connection[Any]:
        """Return a connection that keeps other aggregators out."""
        connection = self._connect()
        reader = PostgresReader(connection)
        deadline_s = time.monotonic() + LOCK_S
        try:
            while not reader.row("SELECT pg_try_advisory_lock(?)", (_WRITER,))[0]:
                if time.monotonic() > deadline_s:
                    msg = f"another aggregator has {self.name}; end it, or choose another database"
                    raise StorageError(msg, StorageFault.LOCKED)
                time.sleep(0.02)
        except StorageError:
            connection.close()
            raise
        return connection

    def _find(self, sql: str, values: Any) -> psycopg.Cursor[Any]:
        try:
            return super()._find(sql, values)
        except StorageError:
            if self.is_writing or not self._connection.broken:
                raise
            self._retake()  # PostgreSQL was restarted, or the network was away
            return super()._find(sql, values)

    def _retake(self) -> None:
        """Connect anew, unless another aggregator had the tables meanwhile.

        Raises:
            StorageError: If it had, or PostgreSQL is still away.
        """
        connection = self._take()
        reader = PostgresReader(connection)
        found = reader.row("SELECT body FROM saved_state WHERE part = ?", (_MARK,))
        if found is None or bytes(found[0]) != self._mark:
            connection.close()
            msg = f"another aggregator had {self.name} while this one was cut off from it"
            raise StorageError(f"{msg}; start this one again", StorageFault.GONE)
        self._connection = connection

    def execute(self, sql: str, values: Any = ()) -> int:
        """Run one statement; return the number of rows that it changed."""
        with storage_errors():
            return self._connection.execute(_of_psycopg(sql), values).rowcount

    def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        """Run one statement for each row of values."""
        with storage_errors(), self._connection.cursor() as cursor:
            cursor.executemany(_of_psycopg(sql), rows)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is written inside, all or none. One within another is part of that one."""
        if self.is_writing:
            yield
            return
        if self._connection.broken:
            self._retake()
        self.is_writing = True
        try:
            self.execute("BEGIN")
            yield
            self.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                self._connection.rollback()
            raise
        finally:
            self.is_writing = False

    @contextlib.contextmanager
    def reading(self) -> Iterator[PostgresReader]:
        """Open a connection that sees one moment, from any thread."""
        connection = self._reader()
        try:
            yield PostgresReader(connection)
            with storage_errors():
                connection.rollback()
        except BaseException:
            connection.close()
            raise
        self._idle.put(connection)

    def _reader(self) -> psycopg.Connection[Any]:
        """Return a connection in a transaction, an idle one unless it was cut off meanwhile."""
        while True:
            is_new = self._idle.empty()
            with contextlib.suppress(queue.Empty):
                connection = self._connect() if is_new else self._idle.get_nowait()
                try:
                    with storage_errors():
                        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                except StorageError:
                    connection.close()
                    if is_new:
                        raise
                else:
                    return connection

    def used_bytes(self) -> int:
        """Return about how much space all rows take."""
        (used,) = self.row(f"SELECT {_USED}")
        return int(used) + 16 * PAGE_BYTES

    def vacuum(self, _num_bytes: int) -> bool:
        """Return False: PostgreSQL does that by itself."""
        return False

    def check_present(self) -> None:
        """Do nothing: what is written to a connection is found again."""

    def reset(self, why: object) -> None:
        """Refuse: PostgreSQL's own backups are for that.

        Raises:
            StorageError: Always.
        """
        msg = f"{self.name} is damaged ({why}); restore it from a backup"
        raise StorageError(msg, StorageFault.UNUSABLE)

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._connection.close()
        while not self._idle.empty():
            self._idle.get_nowait().close()


class PostgresStore(Store):
    """The store in a PostgreSQL database."""

    @classmethod
    def open(cls, url: str, clock: Clock) -> Self:
        """Open or make the store of a database.

        Args:
            url: `postgresql://user:password@host:port/database`.
            clock: Gives the time.

        Raises:
            StorageError: If another aggregator has it, or PostgreSQL refuses.
        """
        return cls(PostgresDatabase(url), clock)
