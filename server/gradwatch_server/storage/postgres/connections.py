"""Connections that are kept open between calls, so many at most, for any thread."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
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

_KEEPALIVES: Final = {
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
}
"""Seconds and tries after which the server lets go of connections of a machine that vanished: the
system's own two hours would let them take the places of the node that comes after it."""

WAIT_S: Final = 10.0
"""How long a call waits for a connection that others have."""


class TimedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection of which is known since when it waits for an answer."""

    busy_since_s: float | None = None


class BinaryCursor(psycopg.Cursor[tuple[Any, ...]]):
    """Gets results in binary: bytes in hexadecimal would be twice as many."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.format = Format.BINARY

    def execute(self, *arguments: Any, **settings: Any) -> Any:
        """Run a statement."""
        with self._timed():
            return super().execute(*arguments, **settings)

    def executemany(self, *arguments: Any, **settings: Any) -> None:
        """Run one for each row of parameters."""
        with self._timed():
            super().executemany(*arguments, **settings)

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        connection = self.connection
        assert isinstance(connection, TimedConnection)  # noqa: S101 - `connect` makes no others
        connection.busy_since_s = time.monotonic()
        try:
            yield
        finally:
            connection.busy_since_s = None


def connect(address: Address, timeout_s: int | None = None, **settings: str) -> Connection:
    """Open a connection that commits each statement, unless a transaction was begun.

    Args:
        address: Where.
        timeout_s: How long it is tried at most, None for what the address says.
        settings: Settings of PostgreSQL for it.

    Raises:
        psycopg.Error: If nobody answers, or it is not let in.
    """
    limit = {} if timeout_s is None else {"connect_timeout": timeout_s}
    connection = TimedConnection.connect(
        **{**address.parameters, **limit}, autocommit=True, cursor_factory=BinaryCursor
    )
    register_text(connection)
    # Not as start-up options, which a proxy in between may refuse.
    wanted = {"search_path": SCHEMA} | _KEEPALIVES | settings
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
        check: Raises a `StorageError` if it is known that none would be answered.
    """

    def __init__(
        self,
        make: Callable[[], Connection],
        most: int,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._make = make
        self._check = check
        self._free = threading.BoundedSemaphore(most)
        self._most = most
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._lent: dict[int, tuple[Connection, float | None]] = {}
        self._is_closed = False

    @contextlib.contextmanager
    def one(self, longest_s: float | None = None) -> Iterator[Connection]:
        """Lend a connection.

        Args:
            longest_s: How long one statement may take, None for as long as those of all may.

        Raises:
            StorageError: If others have all of them for long, the pool is closed, or as *check*
                says.
            psycopg.Error: If no new one can be opened.
        """
        self._check()
        if not self._free.acquire(timeout=WAIT_S):
            msg = f"all {self._most} connections to the ledger were in use for {WAIT_S:g} s"
            raise StorageError(msg, StorageFault.BUSY)
        try:
            self._check()  # again: it may have waited
            connection = self._take()
            with self._lock:
                self._lent[id(connection)] = connection, longest_s
            try:
                yield connection
            finally:
                with self._lock:
                    del self._lent[id(connection)]
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

    def cut(self, longest_s: float | None) -> None:
        """Cut off who waits for an answer: longer than that, or at all; then also what is idle.

        It raises where it is waited for. What is cut off at the server may be done all the same.
        """
        now_s = time.monotonic()
        with self._lock:
            for connection, own_s in self._lent.values():
                since_s = getattr(connection, "busy_since_s", None)
                limit_s = 0.0 if longest_s is None else min(longest_s, own_s or longest_s)
                if since_s is not None and now_s - since_s >= limit_s:
                    _shut_down(connection)
            idle = self._idle if longest_s is None else []
            self._idle = self._idle if longest_s is not None else []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close all of them; those that are lent, when they come back."""
        with self._lock:
            idle, self._idle, self._is_closed = self._idle, [], True
        for connection in idle:
            connection.close()


def _shut_down(connection: Connection) -> None:
    """End a connection while another thread waits for an answer on it."""
    with (
        contextlib.suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as own,
    ):
        own.shutdown(socket.SHUT_RDWR)


def is_quiet(connection: Connection) -> bool:
    """Tell whether nothing came in on an idle connection, as when a server that stops says so."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)
