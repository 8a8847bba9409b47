"""Partitions that nobody owns: what is told of their runs is what their owners published last."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.aggregator import Aggregator
from tests.support.cluster import Cluster
from tests.support.nats_servers import NATSServers
from tests.support.peer import NewPeer
from tests.support.postgres import PostgresServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

RUN = "stays"


@pytest.fixture
def alone(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer
) -> Iterator[tuple[Cluster, NATSServers]]:
    """One node with one NATS server."""
    directory = tmp_path_factory.mktemp("alone")
    with NATSServers(directory / "nats", 1) as nats:
        cluster = Cluster(directory, nats.urls, postgres.make_database(), 1)
        try:
            cluster.start()
            yield cluster, nats
        finally:
            cluster.close()


def row(node: Aggregator, query: str = "") -> dict[str, Any]:
    (found,) = node.json(f"/runs{query}")
    return dict(found)


def test_a_run_that_nobody_owns_is_told_of_as_it_was_published_last(
    alone: tuple[Cluster, NATSServers], peers: NewPeer, postgres: PostgresServer
) -> None:
    cluster, nats = alone
    (node,) = cluster.nodes.values()
    peer = peers(node.ingest, run=RUN).attach()
    peer.steps(1, 1.0, 1.0, float("nan"))
    node.shows(peer)
    before = row(node)
    assert (before["status"], "owner" in before) == ("critical", False)
    ledger = node.environ["GRADWATCH_LEDGER"]

    def published() -> list[Any]:
        return postgres.execute("SELECT summary FROM gradwatch.runs", url=ledger)

    wait_until(lambda: any('"critical"' in text for (text,) in published()), "it is published")
    nats.servers[0].pause()
    try:
        wait_until(lambda: "owner" in row(node), "it is listed though nobody owns it")
        found = row(node, "?spark=8")
        assert (found["run"], found["owner"], found["spark"]) == (RUN, None, [])
        assert (found["status"], found["last_status"]) == ("unknown", "critical")
        answer = node.get(f"/runs/{RUN}/health")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        last = answer.json()["last_summary"]
        assert (last["status"], last["step"]) == ("critical", before["step"])
        assert last["written_at"]
        assert node.get("/runs/nobody").json()["last_summary"] is None
    finally:
        nats.servers[0].go_on()
    wait_until(lambda: "owner" not in row(node), "it is owned again")
    assert row(node)["status"] == "critical"
