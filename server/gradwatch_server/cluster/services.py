"""What a node uses of other machines: NATS with its buckets, the log and the ledger."""

from __future__ import annotations

from typing import Final

from gradwatch_server.cluster.names import Names
from gradwatch_server.cluster.ownership.creation import Creation, create_or_read
from gradwatch_server.cluster.ownership.lease import PROMPT, RENEWALS
from gradwatch_server.cluster.ownership.node_record import decode_node
from gradwatch_server.cluster.ownership.versions import check_neighbours
from gradwatch_server.cluster.patience import patiently
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.key_value import KeyValue
from gradwatch_server.settings import Settings
from gradwatch_server.storage.replicated import ReplicatedStorage
from gradwatch_server.stores import open_replicated
from gradwatch_wire import __version__

BUCKET_S: Final = 5.0
"""How long a call to a bucket waits for its answer: about as long as an election takes."""


class Services:
    """Opens all of it, and waits for what may start at the same time.

    Args:
        settings: Where it is.
        node: Id of the node.
        names: What things are called.

    Raises:
        GradwatchError: If something does not answer in time, or cannot be used.
    """

    def __init__(self, settings: Settings, node: str, names: Names) -> None:
        self._settings, self._node, self._names = settings, node, names
        self.connection = Connection((settings.cluster or "").split(","), node)
        try:
            self._creation = patiently(self._create)
            self.storage = patiently(self._open_storage)
        except BaseException:
            self.connection.close()
            raise

    @property
    def partitions(self) -> int:
        """How many there are."""
        return self._creation.partitions

    def bucket(self, name: str) -> KeyValue:
        """Open or create a bucket whose keys stay."""
        return patiently(lambda: self._bucket(name))

    def leases(self) -> KeyValue:
        """Open or create the bucket of leases, which are of versions that this node may join."""
        return patiently(self._leases)

    def owners(self) -> KeyValue:
        """Open or create the bucket of owner records."""
        return patiently(lambda: self._prompt_bucket(self._names.owners))

    def close(self) -> None:
        """Let go of all of it."""
        self.storage.close()
        self.connection.close()

    def _bucket(self, name: str) -> KeyValue:
        replicas = self._settings.cluster_replicas
        return KeyValue(self.connection, name, replicas, timeout_s=BUCKET_S)

    def _prompt_bucket(self, name: str, ttl_s: float | None = None) -> KeyValue:
        """Open or create a bucket whose calls end early enough for a lease to be renewed then."""
        replicas, lease_s = self._settings.cluster_replicas, self._settings.cluster_lease_s
        times = {"timeout_s": lease_s / PROMPT, "try_s": lease_s / RENEWALS}
        return KeyValue(self.connection, name, replicas, ttl_s, **times)

    def _create(self) -> Creation:
        return create_or_read(self._bucket(self._names.config), self._settings.cluster_partitions)

    def _leases(self) -> KeyValue:
        bucket = self._prompt_bucket(self._names.nodes, self._settings.cluster_lease_s)
        found = (decode_node(entry.value or b"") for entry in bucket.entries().values())
        check_neighbours(__version__, (own for own in found if own is not None))
        return bucket

    def _open_storage(self) -> ReplicatedStorage:
        return open_replicated(
            self.connection,
            self._settings.ledger or "",
            self._creation.id,
            self._creation.partitions,
            namespace=self._settings.cluster_namespace,
            replicas=self._settings.cluster_replicas,
            log_max_bytes=self._settings.cluster_log_max_bytes,
            owner=self._node,
        )
