"""The ledger in one PostgreSQL database, which all nodes of a cluster open."""

from __future__ import annotations

from typing import Final

from gradwatch_server.clock import Clock
from gradwatch_server.storage.postgres.address import Address
from gradwatch_server.storage.postgres.alert_events import PostgresAlertReader
from gradwatch_server.storage.postgres.connections import connect
from gradwatch_server.storage.postgres.database import NOTIFICATIONS, Database, Fence
from gradwatch_server.storage.postgres.deliveries import PostgresDeliveryLog
from gradwatch_server.storage.postgres.faults import storage_errors
from gradwatch_server.storage.postgres.partition import PostgresPartition
from gradwatch_server.storage.postgres.run_catalogue import PostgresRunCatalogue
from gradwatch_server.storage.postgres.schema import migrate
from gradwatch_server.storage.store import StorageError, StorageFault

OLDEST_VERSION: Final = 15
"""Of PostgreSQL, the oldest that this is tested with."""

_PUT_CLUSTER: Final = (
    "INSERT INTO cluster (cluster_id, partitions) VALUES (%s, %s) ON CONFLICT DO NOTHING"
)

_TAKEN: Final = "SELECT 1 FROM partitions WHERE partition = %s"


class PostgresLedger:
    """One database.

    Args:
        address: Where it is.
        cluster_id: The cluster that it has to be of; a new database becomes its ledger.
        partitions: Partitions of that cluster.
        clock: Gives the time at which an alert event is stored.

    Raises:
        StorageError: If nobody answers (`StorageFault.FAILED`), or it cannot be used: it is of
            another cluster, or of a newer version, or PostgreSQL does not let it in.
    """

    def __init__(self, url: str, cluster_id: str, partitions: int, clock: Clock) -> None:
        address = Address(url)
        _check_server(address)
        migrate(address)
        self._clock = clock
        self._partitions = partitions
        self._db = Database(address)
        try:
            self._check_cluster(cluster_id)
        except BaseException:
            self._db.close()
            raise
        self._alert_events = PostgresAlertReader(self._db)
        self._runs = PostgresRunCatalogue(self._db)

    def _check_cluster(self, cluster_id: str) -> None:
        find = "SELECT cluster_id, partitions FROM cluster"
        if self._db.row(find) is None:
            with self._db.writing(None) as connection:
                connection.execute(_PUT_CLUSTER, (cluster_id, self._partitions))
        own_id, own_partitions = self._db.row(find)
        if own_id != cluster_id:
            msg = (
                f"the ledger {self.name} is of cluster {own_id}, and this one is {cluster_id}; "
                "give the database of this cluster with --ledger, or a new one; if NATS lost its "
                "data see Backup in docs/cluster.md"
            )
            raise StorageError(msg, StorageFault.UNUSABLE)
        if own_partitions != self._partitions:
            msg = (
                f"the ledger {self.name} was made with {own_partitions} partitions, and the "
                f"cluster has {self._partitions}: their number is fixed when it is made"
            )
            raise StorageError(msg, StorageFault.UNUSABLE)

    @property
    def name(self) -> str:
        """Hosts and database."""
        return self._db.name

    @property
    def alert_events(self) -> PostgresAlertReader:
        """The alert events of all partitions, without gaps in the order of their cursors."""
        return self._alert_events

    @property
    def runs(self) -> PostgresRunCatalogue:
        """The runs of all partitions."""
        return self._runs

    def check(self) -> None:
        """Raise a `StorageError` if it does not answer."""
        self._db.row("SELECT 1")

    def take(self, partition: int, epoch: int, owner: str = "") -> PostgresPartition:
        """Begin to write a partition; whoever has it with a lower epoch is refused from now on."""
        if not 0 <= partition < self._partitions:
            msg = f"partition {partition}: there are 0 to {self._partitions - 1}"
            raise ValueError(msg)
        fence = Fence(partition, epoch, owner)
        self._db.take(fence)
        return PostgresPartition(self._db, fence, self._clock)

    def was_taken(self, partition: int) -> bool:
        """Tell whether a partition was ever written."""
        return self._db.row(_TAKEN, partition) is not None

    def take_deliveries(self, epoch: int, owner: str = "") -> PostgresDeliveryLog:
        """Begin to write what is kept of notifications, likewise."""
        fence = Fence(NOTIFICATIONS, epoch, owner)
        self._db.take(fence)
        return PostgresDeliveryLog(self._db, fence)

    def close(self) -> None:
        """Close all connections."""
        self._db.close()


def _check_server(address: Address) -> None:
    with storage_errors(address), connect(address) as connection:
        version = connection.info.server_version // 10_000
        row = connection.execute("SHOW server_encoding").fetchone()
    if version < OLDEST_VERSION:
        msg = f"{address.name} is PostgreSQL {version}; the ledger needs {OLDEST_VERSION} or newer"
        raise StorageError(msg, StorageFault.UNUSABLE)
    if row is None or row[0] != "UTF8":
        msg = (
            f"the database of {address.name} has the encoding {row and row[0]}; make one with "
            "ENCODING 'UTF8' TEMPLATE template0"
        )
        raise StorageError(msg, StorageFault.UNUSABLE)
