"""Three nodes of a cluster with real NATS servers and a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.cluster import Cluster
from tests.support.nats_servers import NATSServers
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NATSServers]:
    """Three servers, of which any one may die."""
    with NATSServers(tmp_path_factory.mktemp("nats"), 3) as servers:
        yield servers


NewCluster: TypeAlias = Callable[..., Cluster]


@pytest.fixture
def new_cluster(
    tmp_path: Path, nats: NATSServers, postgres: PostgresServer
) -> Iterator[NewCluster]:
    """`new_cluster(num_nodes, **environ)` starts nodes of a cluster of their own."""
    made: list[Cluster] = []

    def make(num_nodes: int = 3, **environ: str) -> Cluster:
        made.append(Cluster(tmp_path, nats.urls, postgres.make_database(), num_nodes, **environ))
        made[-1].start()
        return made[-1]

    yield make
    for cluster in made:
        cluster.close()
