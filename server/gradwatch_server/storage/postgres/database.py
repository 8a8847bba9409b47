"""A PostgreSQL database: the connection that writes, and those that read beside it.

The node has the lease of the database: each transaction that writes begins with the fence.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final, Self

import psycopg

from gradwatch_server.clock import Clock
from gradwatch_server.storage.log import Log
from gradwatch_server.storage.postgres.connection import storage_errors
from gradwatch_server.storage.postgres.lease import Lease
from gradwatch_server.storage.rows import Loss, StorageError, StorageFault
from gradwatch_server.storage.store import Store

PAGE_BYTES: Final = 8_192

_USED: Final = " + ".join(
    f"(SELECT coalesce(sum(num_bytes), 0) FROM {table})"  # noqa: S608 - a literal
    for table in ("log", "alert_events", "curves")
)


@lru_cache(maxsize=256)
def _of_psycopg(sql: str) -> bytes:
    return sql.replace("%", "%%").replace("?", "%s").encode()


class PostgresReader:
    """A connection that reads."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def row(self, sql: str, values: Any = ()) -> Any:
        """Return the first row that a statement finds, None if there is none."""
        return self._find(sql, values).fetchone()

    def rows(self, sql: str, values: Any = ()) -> Iterator[Any]:
        yield from self._find(sql, values).fetchall()

    def _find(self, sql: str, values: Any) -> psycopg.Cursor[Any]:
        with storage_errors():
            return self._connection.execute(_of_psycopg(sql), values, binary=True)

    def part(self, table: str, column: str, place: int, offset: int, length: int) -> bytes:
        """Return bytes of a value from an offset on, of the row whose id is *place*."""
        select = f"SELECT substr({column}, ?, ?) FROM {table} WHERE id = ?"  # noqa: S608
        row = self.row(select, (offset + 1, min(length, 1 << 30), place))
        return b"" if row is None else bytes(row[0])


class PostgresDatabase(PostgresReader):
    """The connection that writes. One thread at a time may use it.

    Attributes:
        num_cuts: How often the connection was lost, and another one was opened.
    """

    loss: Loss | None = None
    page_bytes = PAGE_BYTES

    def __init__(self, lease: Lease) -> None:
        """Connect."""
        self.lease = lease
        self.num_cuts = 0
        self.is_writing = False
        self._idle: queue.LifoQueue[psycopg.Connection[Any]] = queue.LifoQueue()
        super().__init__(lease.connect())

    @property
    def name(self) -> str:
        """The address of the database, without a password."""
        return self.lease.name

    def _find(self, sql: str, values: Any) -> psycopg.Cursor[Any]:
        try:
            return super()._find(sql, values)
        except StorageError:
            if self.is_writing or not self._connection.broken:
                raise
            self._reconnect()  # it was restarted, or the network was away
            return super()._find(sql, values)

    def _reconnect(self) -> None:
        self._connection = self.lease.connect()
        self.num_cuts += 1

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
            self._reconnect()
        self.is_writing = True
        try:
            self._begin()
            yield
            self.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                self._connection.rollback()
            raise
        finally:
            self.is_writing = False

    def _begin(self) -> None:
        """Begin a transaction, in which no other node can take over.

        Raises:
            StorageError: If another node has the lease.
        """
        with storage_errors():
            cursor = self._connection.execute(self.lease.begin)
            cursor.nextset()
            if cursor.fetchone() is None:
                raise self._gone()

    def _gone(self) -> StorageError:
        self.lease.is_lost = True
        msg = f"another node has taken over {self.name}: this one was stopped or cut off from it"
        return StorageError(msg, StorageFault.GONE)

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
                connection = self.lease.connect() if is_new else self._idle.get_nowait()
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
        """Raise a `StorageError` if another node has taken over."""
        if self.lease.is_lost:
            raise self._gone()

    def reset(self, reason: object) -> None:
        """Refuse: PostgreSQL's own backups are for that.

        Raises:
            StorageError: Always.
        """
        msg = f"{self.name} is damaged ({reason}); restore it from a backup"
        raise StorageError(msg, StorageFault.UNUSABLE)

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._connection.close()
        while not self._idle.empty():
            self._idle.get_nowait().close()


class PostgresStore(Store):
    """The store in a PostgreSQL database; with the store the lease is given back."""

    db: PostgresDatabase
    _num_checked_cuts = 0

    @classmethod
    def open(cls, lease: Lease, clock: Clock) -> Self:
        """Open the store of the database of a lease that this node has."""
        return cls(PostgresDatabase(lease), clock)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is written inside, unless PostgreSQL has lost what was committed before."""
        with super().transaction():
            if self.db.num_cuts != self._num_checked_cuts:
                self._check_tail()
            yield

    def _check_tail(self) -> None:
        """Compare the log with what was committed over the connection before this one.

        Raises:
            StorageError: If rows are missing: what is in memory follows from them.
        """
        had, has = self.log.last_row, Log(self.db).last_row
        if has < had:
            self.db.lease.is_lost = True
            msg = (
                f"{self.name} has lost the newest {had - has} rows of the log, in a failover "
                "without a synchronous standby or a restore; this node begins anew"
            )
            raise StorageError(msg, StorageFault.GONE)
        self._num_checked_cuts = self.db.num_cuts

    def close(self) -> None:
        """Close all connections, and let another node take over."""
        super().close()
        self.db.lease.release()
