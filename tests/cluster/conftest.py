"""Three nodes of a cluster with real NATS servers and a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster
from tests.support.nats_servers import NATSServers
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="session")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> Iterator[Cluster]:
    """Nodes that all tests share, in the order of the files: one that is killed is killed last."""
    directory = tmp_path_factory.mktemp("cluster")
    with NATSServers(directory / "nats", 3) as nats:
        cluster = Cluster(directory, nats.urls, postgres.make_database(), 3)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()
