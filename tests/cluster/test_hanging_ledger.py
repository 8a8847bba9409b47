"""A PostgreSQL that takes what it is sent and does not answer, under a node that goes on."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import pytest

from gradwatch_server.cluster.creation import PARTITIONS
from gradwatch_server.cluster.ownership import partition_of
from tests.support.aggregator import Aggregator
from tests.support.cluster import Cluster
from tests.support.nats_servers import NATSServers
from tests.support.peer import NewPeer
from tests.support.postgres import PostgresServer
from tests.support.relay import Relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

END_S = 25.0
"""What the end of a node may take while PostgreSQL hangs."""

LATE = next(
    run
    for run in (f"late-{number}" for number in count())
    if partition_of(run, PARTITIONS) == partition_of("gpt", PARTITIONS)
)


def steps(node: Aggregator, run: str) -> list[int]:
    """Return the steps of which there is a row in the curves of a run."""
    found = node.get(f"/runs/{run}/series?last=512")
    return list(found.raise_for_status().json()["step"])


class Alone(NamedTuple):
    """One node, and what is between it and PostgreSQL."""

    node: Aggregator
    relay: Relay


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Alone]:
    directory = tmp_path_factory.mktemp("hanging")
    parts = urlsplit(postgres.make_database())
    who, _, place = parts.netloc.rpartition("@")
    relay = Relay(f"tcp://{place}")
    through = parts._replace(netloc=f"{who}@{relay.endpoint.removeprefix('tcp://')}")
    with NATSServers(directory / "nats", 1) as nats:
        cluster = Cluster(directory, nats.urls, urlunsplit(through), 1)
        try:
            cluster.start()
            yield Alone(cluster.nodes["a"], relay)
        finally:
            cluster.close()
            relay.resume()
            relay.close()


def test_records_are_acknowledged_and_alerts_told_once_it_answers(
    alone: Alone, peers: NewPeer
) -> None:
    node, relay = alone
    peer = peers(node.ingest).attach()
    peer.steps(1, *[1.0] * 12)
    node.shows(peer)
    relay.hang()
    try:
        peer.stats(13, (float("nan"), 1.0))
        for step in range(14, 40):
            peer.stats(step)
        peer.acked()  # although there is an alert that cannot be stored
        began_s = time.monotonic()
        assert node.get("/alerts").status_code == 503
        assert time.monotonic() - began_s < 15.0
        wait_until(lambda: not node.get("/readyz").is_success, "it is not ready")
        assert "PostgreSQL" in node.get("/readyz").json()["detail"]
        assert node.health("gpt")["step"] is not None
        # A run that began meanwhile, in a partition with an engine.
        late = peers(node.ingest, run=LATE).attach()
        late.steps(1, *[1.0] * 5)
    finally:
        relay.resume()
    alerts = wait_until(lambda: node.get("/alerts").is_success and node.json("/alerts"), "alerts")
    assert [(own["rule"], own["state"]) for own in alerts][:1] == [("nonfinite", "firing")]
    wait_until(lambda: node.get("/readyz").is_success, "it is ready")
    assert len(steps(node, "gpt")) == 39
    wait_until(lambda: len(steps(node, LATE)) == 5, "all rows of its curves")


def test_a_node_ends_although_it_hangs(alone: Alone, peers: NewPeer) -> None:
    node, relay = alone
    peer = peers(node.ingest).attach()
    peer.steps(1, *[1.0] * 12)
    node.shows(peer)
    relay.hang()
    peer.stats(13)
    began_s = time.monotonic()
    node.stop(signal.SIGTERM)
    assert time.monotonic() - began_s < END_S
