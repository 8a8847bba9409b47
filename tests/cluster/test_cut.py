"""Two NATS servers that do not reach each other: nodes at them go where they do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.test_failover import goes_on
from tests.support.cluster import Cluster
from tests.support.divided_servers import DividedServers
from tests.support.peer import NewPeer
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def divided(tmp_path: Path) -> Iterator[DividedServers]:
    with DividedServers(tmp_path / "nats") as servers:
        yield servers


@pytest.fixture
def cluster(tmp_path: Path, divided: DividedServers, postgres: PostgresServer) -> Iterator[Cluster]:
    """Two nodes, each at one of the servers that can be cut off from each other."""
    cluster = Cluster(tmp_path, divided.urls, postgres.make_database(), 2)
    try:
        for node, url in zip(cluster.nodes.values(), divided.urls, strict=False):
            node.environ["GRADWATCH_CLUSTER"] = url  # of the others it is told
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def test_a_rank_that_knows_one_node_only_is_served_during_a_cut(
    cluster: Cluster, divided: DividedServers, peers: NewPeer
) -> None:
    """Its messages are acknowledged again, the alert comes, and all stay where they went."""
    near, far = cluster.nodes.values()
    run = cluster.run_of("b", "cut")
    peer = peers(near.ingest, run=run).attach()
    peer.steps(1, *[1.0] * 20)
    near.shows(peer)

    divided.cut()
    peer.stats(21, (float("nan"), 1.0))
    goes_on(peer, step=22)
    wait_until(lambda: near.json("/alerts", params={"run": run}), "the alert")
    moves = [line for node in (near, far) for line in node.errors.splitlines() if "moved" in line]
    assert moves
    server = divided.urls[2].removeprefix("nats://")
    assert all(f" to {server}; not reached before: " in line for line in moves)

    divided.mend()
    divided.wait_until_ready()
    cluster.settle()
    goes_on(peer, step=23)
    near.shows(peer)
    health = near.health(run)
    assert (health["records"]["stored"], health["records"]["lost"]) == (peer.seq, 0)
