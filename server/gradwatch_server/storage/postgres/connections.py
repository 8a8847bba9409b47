"""Connections that are kept open between calls, so many at most, for any thread."""

from __future__ import annotations

import contextlib
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.pq import Format, TransactionStatus

from gradwatch_server.storage.postgres.address import Address
from gradwatch_server.storage.postgres.text import register_text
from gradwatch_server.storage.store import StorageError, StorageFault

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

SCHEMA: Final = "gradwatch"
"""The PostgreSQL schema that all tables are in, so that the database may have others."""

WAIT_S: Final = 10.0
"""How long a call waits for a connection that others have."""


class BinaryCursor(psycopg.Cursor[tuple[Any, ...]]):
    """Gets results in binary: bytes in hexadecimal would be twice as many."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.format = Format.BINARY


def connect(address: Address, **settings: str) -> Connection:
    """Open a connection that commits each statement, unless a transaction was begun.

    Args:
        address: Where.
        settings: Settings of PostgreSQL for it.

    Raises:
        psycopg.Error: If nobody answers, or it is not let in.
    """
    connection = psycopg.Connection[tuple[Any, ...]].connect(
        **address.parameters, autocommit=True, cursor_factory=BinaryCursor
    )
    register_text(connection)
    # Not as start-up options, which a proxy in between may refuse.
    wanted = {"search_path": SCHEMA} | settings
    calls = ", ".join(["set_config(%s, %s, false)"] * len(wanted))
    values = [text for pair in wanted.items() for text in pair]
    try:
        connection.execute(f"SELECT {calls}", values)
    except BaseException:
        connection.close()
        raise
    return connection


def execute_all(connection: Connection, sql: str, rows: Sequence[Sequence[Any]]) -> None:
    """Run one statement for each row of parameters, if there are any, without waiting between."""
    if rows:
        with connection.cursor() as cursor:
            cursor.executemany(sql, rows)


class Connections:
    """A pool.

    Args:
        make: Opens a connection.
        most: How many there are at most.
    """

    def __init__(self, make: Callable[[], Connection], most: int) -> None:
        self._make = make
        self._free = threading.BoundedSemaphore(most)
        self._most = most
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._is_closed = False

    @contextlib.contextmanager
    def one(self) -> Iterator[Connection]:
        """Lend a connection.

        Raises:
            StorageError: If others have all of them for long, or the pool is closed.
            psycopg.Error: If no new one can be opened.
        """
        if not self._free.acquire(timeout=WAIT_S):
            msg = f"all {self._most} connections to the ledger were in use for {WAIT_S:g} s"
            raise StorageError(msg, StorageFault.BUSY)
        try:
            connection = self._take()
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            self._free.release()

    def _take(self) -> Connection:
        while True:
            with self._lock:
                if self._is_closed:
                    msg = "the ledger is closed"
                    raise StorageError(msg)
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._make()
            if is_quiet(connection):
                return connection
            connection.close()

    def _give_back(self, connection: Connection) -> None:
        is_usable = connection.info.transaction_status is TransactionStatus.IDLE
        with self._lock:
            if is_usable and not self._is_closed:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close all of them; those that are lent, when they come back."""
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for connection in idle:
            connection.close()


def is_quiet(connection: Connection) -> bool:
    """Tell whether nothing came in on an idle connection, as when a server that stops says so."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)
