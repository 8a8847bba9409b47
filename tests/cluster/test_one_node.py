"""One node, and what it is between: NATS that stands still, a PostgreSQL that hangs, lost records.

The tests share the node; the last one ends it.
"""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import pytest
from nats.aio.client import Client

from gradwatch_server.cluster.ownership.creation import PARTITIONS
from gradwatch_server.cluster.ownership.plan import partition_of
from gradwatch_server.nats.connection import Connection
from tests.support.aggregator import Aggregator
from tests.support.cluster import Cluster
from tests.support.nats_servers import NATSServers
from tests.support.peer import NewPeer
from tests.support.postgres import PostgresServer
from tests.support.relay import Relay
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

RUN, HANGING = "stays", "hangs"

END_S = 25.0
"""What the end of a node may take while PostgreSQL hangs."""

LATE = next(
    run
    for run in (f"late-{number}" for number in count())
    if partition_of(run, PARTITIONS) == partition_of(HANGING, PARTITIONS)
)


def steps(node: Aggregator, run: str) -> list[int]:
    """Return the steps of which there is a row in the curves of a run."""
    found = node.get(f"/runs/{run}/series?last=512")
    return list(found.raise_for_status().json()["step"])


class Alone(NamedTuple):
    """One node, its NATS server, and what is between it and PostgreSQL."""

    node: Aggregator
    nats: NATSServers
    relay: Relay
    ledger: str
    namespace: str


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Alone]:
    directory = tmp_path_factory.mktemp("alone")
    url = postgres.make_database()
    who, _, place = urlsplit(url).netloc.rpartition("@")
    relay = Relay(f"tcp://{place}")
    near = f"{who}@{relay.endpoint.removeprefix('tcp://')}"
    through = urlunsplit(urlsplit(url)._replace(netloc=near))
    with NATSServers(directory / "nats", 1) as nats:
        cluster = Cluster(directory, nats.urls, through, 1, GRADWATCH_CLUSTER_NAMESPACE="alone")
        try:
            cluster.start()
            yield Alone(cluster.nodes["a"], nats, relay, url, "alone")
        finally:
            relay.resume()
            cluster.close()
            relay.close()


def row(node: Aggregator, query: str = "") -> dict[str, Any]:
    found = {own["run"]: own for own in node.json(f"/runs{query}")}
    return dict(found[RUN])


def epochs(node: Aggregator) -> list[str]:
    """Return the epoch of each partition that a node has, as `/metrics` says it."""
    text = node.get("/metrics").text
    return [line for line in text.splitlines() if line.startswith("gradwatch_partition_epoch{")]


def test_a_run_that_nobody_owns_is_told_of_as_it_was_published_last(
    alone: Alone, peers: NewPeer, postgres: PostgresServer
) -> None:
    node, nats = alone.node, alone.nats
    peer = peers(node.ingest, run=RUN).attach()
    peer.steps(1, 1.0, 1.0, float("nan"))
    node.shows(peer)
    before, before_epochs = row(node), epochs(node)
    assert (before["status"], "owner" in before) == ("critical", False)

    def published() -> list[Any]:
        return postgres.execute("SELECT summary FROM gradwatch.runs", url=alone.ledger)

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
        assert node.get("/readyz").status_code == 503
    finally:
        nats.servers[0].go_on()
    wait_until(lambda: "owner" not in row(node), "it is owned again")
    assert row(node)["status"] == "critical"
    assert epochs(node) == before_epochs  # it goes on with what it has


def test_records_are_acknowledged_and_alerts_told_once_it_answers(
    alone: Alone, peers: NewPeer
) -> None:
    node, relay = alone.node, alone.relay
    peer = peers(node.ingest, run=HANGING).attach()
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
        assert node.health(HANGING)["step"] is not None
        # A run that began meanwhile, in a partition with an engine.
        late = peers(node.ingest, run=LATE).attach()
        late.steps(1, *[1.0] * 5)
    finally:
        relay.resume()
    wait_until(lambda: node.get("/alerts").is_success, "it can be asked for alerts")
    alerts = wait_until(lambda: node.json(f"/alerts?run={HANGING}"), "the alert")
    assert [(own["rule"], own["state"]) for own in alerts][:1] == [("nonfinite", "firing")]
    wait_until(lambda: node.get("/readyz").is_success, "it is ready")
    assert len(steps(node, HANGING)) == 39
    wait_until(lambda: len(steps(node, LATE)) == 5, "all rows of its curves")


def forget(alone: Alone, *kinds: str) -> None:
    """Lose streams of the cluster."""
    with Connection(alone.nats.urls) as connection:
        for kind in kinds:

            async def delete(client: Client, kind: str = kind) -> None:
                await client.jetstream().delete_stream(kind)

            connection.call(delete, "deleting")


def goes_on(node: Aggregator, peers: NewPeer, run: str) -> list[dict[str, Any]]:
    """Train an attempt of a run that goes wrong; return the alerts of all its attempts."""
    before = node.json(f"/alerts?run={run}")
    peer = peers(node.ingest, run=run).attach()
    peer.steps(1, *[1.0] * 12, float("nan"))
    node.shows(peer)

    def alerts() -> list[dict[str, Any]]:
        return list(node.json(f"/alerts?run={run}"))

    wait_until(lambda: len(alerts()) > len(before), "its alert")
    return alerts()


def test_a_lost_bucket_of_owners_heals_with_the_next_start(alone: Alone, peers: NewPeer) -> None:
    """Epochs begin anew, and above those that log and ledger have seen."""
    node = alone.node
    goes_on(node, peers, "heals")
    assert node.stop(signal.SIGTERM) == 0
    forget(alone, f"KV_{alone.namespace}-owners")
    node.start()
    wait_until(lambda: node.get("/runs/heals").is_success, "somebody has it")
    assert [own["attempt"] for own in goes_on(node, peers, "heals")] == [1, 2]


def test_a_ledger_goes_on_with_another_nats(
    alone: Alone, peers: NewPeer, postgres: PostgresServer
) -> None:
    """As `docs/cluster.md` says for the case that all data of NATS is lost."""
    node = alone.node
    assert node.stop(signal.SIGTERM) == 0
    names = ("config", "owners", "silences", "nodes")
    forget(alone, f"{alone.namespace.upper()}_LOG", *(f"KV_{alone.namespace}-{n}" for n in names))
    with pytest.raises(AssertionError, match="is of cluster"):
        node.start()
    assert node.stop() == 1
    refused = re.search(r"and this one is (\w+)", node.errors)
    assert refused is not None
    postgres.execute(f"UPDATE gradwatch.cluster SET cluster_id = '{refused[1]}'", url=alone.ledger)
    node.start()
    wait_until(lambda: node.get("/readyz").is_success, "it is ready")
    assert [own["attempt"] for own in goes_on(node, peers, "heals")] == [1, 2, 3]


def test_a_node_ends_although_it_hangs(alone: Alone, peers: NewPeer) -> None:
    node, relay = alone.node, alone.relay
    peer = peers(node.ingest, run=HANGING).attach()
    peer.steps(1, *[1.0] * 12)
    node.shows(peer)
    relay.hang()
    peer.stats(13)
    began_s = time.monotonic()
    node.stop(signal.SIGTERM)
    assert time.monotonic() - began_s < END_S
