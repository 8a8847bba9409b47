"""The lease of a database: one node writes, the others wait and take over.

Each node has a row in `nodes`, and one of them has the lease. A transaction of a store begins with
the fence: it locks the node's row, unless another node has the lease by then. So a node that was
stopped, or cut off, writes nothing after a takeover, however late its statement comes. The clock of
the database alone decides whether a lease has run out.

The fence is `FOR KEY SHARE`: a renewal may pass a commit that takes long, a takeover waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from gradwatch_server.addresses import database_name
from gradwatch_server.storage.postgres.connection import connect, storage_errors
from gradwatch_server.storage.rows import StorageError
from gradwatch_wire import __version__

logger = logging.getLogger(__name__)

LEASE_S: Final = 3.0
"""Seconds without a renewal after which another node takes over."""

RENEWALS: Final = 4
"""Renewals within a lease."""

CLOCK_S: Final = 2.0
"""Difference of clocks above which a node says so."""

_REGISTER: Final = """
    INSERT INTO nodes (node, http, version) VALUES (%s, %s, %s)
    ON CONFLICT (node) DO UPDATE SET seen_at = clock_timestamp()
"""

_HOLDER: Final = """
    SELECT node, http, seen_at < clock_timestamp() - make_interval(secs => %s) FROM nodes
    WHERE holds
"""

_NODES: Final = """
    SELECT node, http, holds FROM nodes
    WHERE seen_at > clock_timestamp() - make_interval(secs => %s) ORDER BY http
"""

_END_BACKENDS: Final = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = %s
"""

_DISPLACE: Final = """
    UPDATE nodes SET holds = NULL, epoch = epoch + 1 WHERE node IN (
        SELECT node FROM nodes
        WHERE holds AND seen_at < clock_timestamp() - make_interval(secs => %s) FOR UPDATE
    )
"""

_TAKE: Final = """
    UPDATE nodes SET holds = true, epoch = epoch + 1, seen_at = clock_timestamp() WHERE node = %s
    RETURNING epoch, extract(epoch FROM clock_timestamp())::float8
"""

_FORGET: Final = """
    DELETE FROM nodes WHERE holds IS NULL AND seen_at < clock_timestamp() - interval '1 day'
"""

_RENEW: Final = """
    UPDATE nodes SET seen_at = clock_timestamp() WHERE node = %s AND epoch = %s AND holds
"""

_RELEASE: Final = "DELETE FROM nodes WHERE node = %s"


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a database.

    Args:
        id: Tells its start from others; empty if it is not known.
        http: Where people reach it, empty if it does not know.
    """

    id: str
    http: str
    has_lease: bool = True


class Lease:
    """Right of one node to write into a database, renewed by a thread of its own.

    Attributes:
        node: Id of the node; a node that lost its lease registers under another one.
    """

    def __init__(self, url: str, node: str, http: str = "", lease_s: float = LEASE_S) -> None:
        """Prepare to ask for it.

        Args:
            lease_s: Seconds without a renewal after which others take over; all nodes must agree.
        """
        self.url = url
        self.node = node
        self.is_lost = False
        self._http = http
        self._lease_s = lease_s
        self._epoch = 0
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()  # over the connection
        self._ended = threading.Event()
        self._is_released = False
        self._keeper = threading.Thread(target=self._keep, name="gradwatch-lease", daemon=True)

    @property
    def name(self) -> str:
        """The address of the database, without a password."""
        return database_name(self.url)

    @property
    def begin(self) -> bytes:
        """`BEGIN` and the fence, which finds a row while this node has the lease."""
        mine = f"node = '{self.node}' AND epoch = {self._epoch} AND holds"
        return f"BEGIN; SELECT 1 FROM nodes WHERE {mine} FOR KEY SHARE".encode()  # noqa: S608

    def connect(self) -> psycopg.Connection[Any]:
        """Open a connection of this node."""
        return connect(self.url, _application(self.node))

    def acquire(self) -> Node | None:
        """Take the lease if nobody has it, and keep it; return who has it instead."""
        with storage_errors(), self._lock:
            connection = self._open()
            connection.execute(_REGISTER, (self.node, self._http, __version__))
            holder = connection.execute(_HOLDER, (self._lease_s,)).fetchone()
            if holder is not None and not holder[2]:
                return Node(*holder[:2])
            if holder is not None:  # or what it locked is waited for until it wakes up
                connection.execute(_END_BACKENDS, (_application(holder[0]),))
            try:
                self._take(connection)
            except psycopg.errors.UniqueViolation:  # another one was first
                return Node("", "")
        self._keeper.start()
        return None

    def _take(self, connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            connection.execute(_DISPLACE, (self._lease_s,))
            connection.execute(_FORGET)
            self._epoch, now_s = connection.execute(_TAKE, (self.node,)).fetchall()[0]
        if abs(ahead_s := time.time() - now_s) > CLOCK_S:
            logger.warning(
                "the clock of this node is %.0f s %s that of %s: alerts are dated by it",
                abs(ahead_s),
                "ahead of" if ahead_s > 0 else "behind",
                self.name,
            )

    def nodes(self) -> list[Node]:
        """Return the nodes that were heard of within a lease."""
        with storage_errors(), self._lock, contextlib.suppress(psycopg.errors.UndefinedTable):
            rows = self._open().execute(_NODES, (self._lease_s,)).fetchall()
            return [Node(node, http, has_lease=bool(holds)) for node, http, holds in rows]
        return []

    def release(self) -> None:
        """Give the lease back, so that another node need not wait."""
        if self._is_released:
            return
        self._is_released = True
        self._ended.set()
        if self._keeper.ident is not None:
            self._keeper.join()
        away = contextlib.suppress(StorageError, psycopg.Error)
        with away, self._lock, contextlib.closing(self._open()) as connection:
            connection.execute(_RELEASE, (self.node,))

    def _keep(self) -> None:
        has_failed = False
        while not self._ended.wait(self._lease_s / RENEWALS):
            try:
                with storage_errors(), self._lock:
                    renewed = self._open().execute(_RENEW, (self.node, self._epoch)).rowcount
            except StorageError as error:
                if not has_failed:
                    logger.error("the lease of %s cannot be renewed: %s", self.name, error)
                has_failed = True
                continue
            if not renewed:
                self.is_lost = True
                return
            has_failed = False

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed or self._connection.broken:
            self._connection = self.connect()
        return self._connection


def _application(node: str) -> str:
    return f"gradwatch {node}"
