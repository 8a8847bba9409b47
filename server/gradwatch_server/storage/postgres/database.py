"""The database of a ledger: what reads it, what writes it, and that an owner of the past does not.

Each transaction that writes looks at the epoch of its partition first, and keeps that row from
being changed until it ends: whoever takes the partition over waits for it, and nothing comes later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from gradwatch_server.storage.postgres.address import Address
from gradwatch_server.storage.postgres.connections import Connection, Connections, connect
from gradwatch_server.storage.postgres.faults import storage_errors
from gradwatch_server.storage.postgres.heartbeat import HANGS_S, Heartbeat
from gradwatch_server.storage.postgres.stalled_writers import end_stalled
from gradwatch_server.storage.store import StorageError, StorageFault

WRITERS: Final = 6
"""Connections that write; a write takes milliseconds, so that many partitions share them."""

READERS: Final = 17
"""Connections that read. With one that asks whether it answers, three nodes have 72 in all, and
PostgreSQL lets 97 in if nothing is set.
"""

STALLED_MS: Final = 3_000
"""How long a transaction that writes may rest. A node that is stopped in the middle of one would
keep all others from storing alerts."""

LOCK_MS: Final = 5_000
"""How long a statement waits for others: longer than they may rest."""

BRIEF_S: Final = 20.0
"""How long a statement may take, although others are answered, where what is written is little and
others wait: alerts, and who has a partition."""

READING_MS: Final = 300_000
"""How long one that reads may rest: it keeps PostgreSQL from removing what was deleted."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Who writes.

    Args:
        partition: Number of the partition; `NOTIFICATIONS` for these.
        epoch: When it was taken: who takes it next has a higher one.
        owner: Who took it: of two with the same epoch, as there may be once NATS has lost its
            data, the first one.
    """

    partition: int
    epoch: int
    owner: str = ""


NOTIFICATIONS: Final = -1
"""Stands in place of a partition for what is kept of notifications, which one node sends."""

_EPOCH: Final = "SELECT epoch, owner FROM partitions WHERE partition = %s FOR SHARE"

_TAKE: Final = """
    INSERT INTO partitions (partition, epoch, owner) VALUES (%s, %s, %s)
    ON CONFLICT (partition) DO UPDATE SET epoch = excluded.epoch, owner = excluded.owner
    WHERE partitions.epoch < excluded.epoch
    OR (partitions.epoch = excluded.epoch AND partitions.owner = excluded.owner)
    RETURNING epoch
"""


class Database:
    """Connections to one database, for any thread.

    Args:
        address: Where it is.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._writers = Connections(self._writer, WRITERS, self._check_answers)
        self._readers = Connections(self._reader, READERS, self._check_answers)
        pools = self._writers, self._readers
        question = end_stalled(STALLED_MS)
        self._heartbeat = Heartbeat(self._beating, pools, address.name, question)
        self._heartbeat.start()

    def _check_answers(self) -> None:
        self._heartbeat.check()

    def _beating(self) -> Connection:
        return connect(self._address, timeout_s=round(HANGS_S))

    def _writer(self) -> Connection:
        return connect(
            self._address,
            lock_timeout=f"{LOCK_MS}ms",
            idle_in_transaction_session_timeout=f"{STALLED_MS}ms",
        )

    def _reader(self) -> Connection:
        return connect(
            self._address,
            default_transaction_read_only="on",
            idle_in_transaction_session_timeout=f"{READING_MS}ms",
        )

    @property
    def name(self) -> str:
        """What errors call it."""
        return self._address.name

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """Lend a connection on which each statement reads by itself."""
        with storage_errors(self._address), self._readers.one() as connection:
            yield connection

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Lend a connection that reads all as it is at one moment."""
        with self.reading() as connection, _transaction(connection, "REPEATABLE READ"):
            yield connection

    @contextlib.contextmanager
    def writing(self, fence: Fence | None, longest_s: float | None = None) -> Iterator[Connection]:
        """Commit what is written inside, all or none.

        Args:
            fence: Who writes; None for what is of no partition.
            longest_s: How long one statement may take, None for as long as those of all may.

        Raises:
            StorageError: If the partition was taken by another (`StorageFault.GONE`), or it fails.
        """
        with (
            storage_errors(self._address),
            self._writers.one(longest_s) as connection,
            _transaction(connection, "READ COMMITTED"),
        ):
            if fence is not None:
                self._check(connection, fence)
            yield connection

    def _check(self, connection: Connection, fence: Fence) -> None:
        row = connection.execute(_EPOCH, (fence.partition,)).fetchone()
        if row is None or tuple(row) != (fence.epoch, fence.owner):
            raise self._gone(fence, None if row is None else row[0])

    def _gone(self, fence: Fence, epoch: int | None) -> StorageError:
        what = "notifications" if fence.partition < 0 else f"partition {fence.partition}"
        has = "none" if epoch is None else str(epoch)
        which = f"{fence.epoch} of {fence.owner}" if epoch == fence.epoch else str(fence.epoch)
        msg = f"{what} of the ledger {self.name} has epoch {has}, not {which}: taken over"
        return StorageError(msg, StorageFault.GONE, epoch)

    def take(self, fence: Fence) -> None:
        """Refuse from now on what is written with a lower epoch.

        Raises:
            StorageError: If a higher one has it (`StorageFault.GONE`), or it fails.
        """
        with self.writing(None, BRIEF_S) as connection:
            own = fence.partition, fence.epoch, fence.owner
            if connection.execute(_TAKE, own).fetchone() is None:
                row = connection.execute(_EPOCH, (fence.partition,)).fetchone()
                raise self._gone(fence, None if row is None else row[0])

    def row(self, sql: str, *values: Any) -> Any:
        """Return the first row that a statement finds, None if there is none."""
        with self.reading() as connection:
            return connection.execute(sql, values).fetchone()

    def rows(self, sql: str, *values: Any) -> list[Any]:
        """Return all rows that a statement finds."""
        with self.reading() as connection:
            return connection.execute(sql, values).fetchall()

    def close(self) -> None:
        """Close all connections."""
        self._heartbeat.stop()
        self._writers.close()
        self._readers.close()


@contextlib.contextmanager
def _transaction(connection: Connection, isolation: str) -> Iterator[None]:
    connection.execute(f"BEGIN ISOLATION LEVEL {isolation}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(psycopg.Error):  # a connection that broke is rolled back
            connection.execute("ROLLBACK")
        raise
