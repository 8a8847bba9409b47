"""The ledger: one database that all nodes write, whose every write is of an epoch.

What is in it is kept as the single process keeps it, in SQLite. Who may write is decided as in the
cluster: in the same transaction, by the epoch that took the partition over. An owner that stops in
the midst of a transaction holds its locks until the ledger ends it.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from gradwatch_server.storage.sqlite.database import Database
from gradwatch_server.storage.sqlite.presence import Presence
from gradwatch_server.storage.store import StorageError, StorageFault
from simulation.clock import Clock
from simulation.nodes.faults import NodeFaults

IDLE_S: Final = 5.0
"""After which the ledger ends a transaction whose owner says nothing more."""

ALERTS: Final = "the counter of alert events"

Point = Callable[[str], None]


class Ledger:
    """What is committed, and which locks are held."""

    def __init__(self, clock: Clock, on_taken: Callable[[int, int], None]) -> None:
        self.alerts = Database(None)
        self.partitions: dict[int, Database] = defaultdict(lambda: Database(None))
        self.epochs: dict[int, int] = defaultdict(int)
        self.owners: dict[int, str] = {}
        self._clock = clock
        self._on_taken = on_taken
        self._locks: dict[object, tuple[object, float]] = {}  # what -> by whom, until when

    def take_over(self, partition: int, epoch: int, owner: str) -> None:
        """Let nobody but an owner of *epoch* write what is of a partition.

        Raises:
            StorageError: If a higher one has it, or another owner, or somebody writes it just now.
        """
        holder = object()
        with self.locked(holder, [partition]):
            newest = self.epochs[partition]
            if newest > epoch or (newest == epoch and self.owners[partition] != owner):
                text = "another node took the partition over"
                raise StorageError(text, StorageFault.GONE, newest)
            self.epochs[partition], self.owners[partition] = epoch, owner
            self._on_taken(partition, epoch)

    @contextlib.contextmanager
    def locked(self, holder: object, names: Sequence[object]) -> Iterator[None]:
        """Lock things for a holder.

        Raises:
            StorageError: If another one holds one of them.
        """
        if not all(self.is_free(name, holder) for name in names):
            raise StorageError("the ledger is locked by another transaction", StorageFault.BUSY)
        for name in names:
            self._locks[name] = holder, self._clock.now_s + IDLE_S
        yield
        for name in names:
            if self.holds(holder, name):
                del self._locks[name]

    def is_free(self, name: object, holder: object) -> bool:
        """Tell whether a holder may have a lock."""
        own, until_s = self._locks.get(name, (holder, 0.0))
        return own is holder or until_s <= self._clock.now_s

    def holds(self, holder: object, name: object) -> bool:
        """Tell whether a transaction still has what it locked."""
        own, until_s = self._locks.get(name, (None, 0.0))
        return own is holder and self._clock.now_s < until_s

    def close(self) -> None:
        """Let the memory go."""
        for database in (self.alerts, *self.partitions.values()):
            database.close()


class LedgerSession:
    """What one owner does with the ledger, as one epoch of one partition."""

    def __init__(
        self,
        ledger: Ledger,
        node: int,
        partition: int,
        epoch: int,
        owner: str,
        faults: NodeFaults,
        point: Point,
        on_commit: Callable[[], None],
    ) -> None:
        """Take the partition over.

        Args:
            ledger: The ledger.
            node: Number of the owner.
            partition: The partition.
            epoch: Of which all writes are.
            owner: Who writes.
            faults: What fails.
            point: Passed before, in the midst of, and after a transaction.
            on_commit: Called when something is committed.

        Raises:
            StorageError: If a higher epoch has it, or the ledger is away.
        """
        self._ledger = ledger
        self._node, self._partition = node, partition
        self._epoch, self._owner = epoch, owner
        self._faults = faults
        self._point = point
        self._on_commit = on_commit
        self.reach()
        ledger.take_over(partition, epoch, owner)

    def database(self) -> Database:
        """Return what is of the partition alone."""
        return GuardedDatabase(self._ledger.partitions[self._partition], self, [self._partition])

    def alerts(self) -> Database:
        """Return what is shared with all partitions."""
        return GuardedDatabase(self._ledger.alerts, self, [self._partition, ALERTS])

    def reach(self) -> None:
        """Make sure that the ledger answers.

        Raises:
            StorageError: If it does not.
        """
        if not self._faults.reaches_ledger(self._node):
            raise StorageError("the ledger does not answer")

    def check(self) -> None:
        """Make sure that nobody took the partition over.

        Raises:
            StorageError: If somebody did.
        """
        own, has = (self._epoch, self._owner), self._partition
        if (self._ledger.epochs[has], self._ledger.owners[has]) != own:
            raise StorageError("another node took the partition over", StorageFault.GONE)

    @contextlib.contextmanager
    def transaction(self, locks: Sequence[object]) -> Iterator[None]:
        """Hold locks, and check that what is written inside may be.

        Raises:
            StorageError: If it may not, or its answer is lost.
        """
        self._point("before a transaction")
        self.reach()
        holder = object()
        with self._ledger.locked(holder, locks):
            self._point("in a transaction")
            self.reach()
            if not all(self._ledger.holds(holder, name) for name in locks):
                raise StorageError("the ledger ended a transaction that was idle")
            self.check()
            yield
            self._on_commit()
        if self._faults.chance(self._faults.scenario.uncertain):
            raise StorageError("the connection was lost during a commit")
        self._point("after a transaction")


class GuardedDatabase(Database):
    """A database of the ledger as one owner reaches it."""

    def __init__(self, base: Database, session: LedgerSession, locks: Sequence[object]) -> None:
        self._path = None
        self._connection = base.connection
        self._presence = Presence(())
        self._session = session
        self._locks = locks

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        """Run one statement."""
        self._session.reach()
        return super().execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any]) -> None:
        """Run one statement for each row of parameters."""
        self._session.reach()
        super().executemany(sql, rows)

    def row(self, sql: str, parameters: Any = ()) -> Any:
        """Return the first row that a statement finds."""
        self._session.reach()
        return super().row(sql, parameters)

    def rows(self, sql: str, parameters: Any = ()) -> Iterator[Any]:
        """Yield what a statement finds."""
        self._session.reach()
        return super().rows(sql, parameters)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit what is written inside, all or none, unless its epoch is over."""
        with self._session.transaction(self._locks), super().transaction():
            yield
