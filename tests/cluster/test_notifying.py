"""Notifications are sent by one node, and by the next one when that is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster
from tests.support.nats_servers import NATSServers
from tests.support.peer import NewPeer
from tests.support.postgres import PostgresServer
from tests.support.receiver import Receiver
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Who is told."""
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def notifying(tmp_path: Path, postgres: PostgresServer, receiver: Receiver) -> Iterator[Cluster]:
    """Three nodes that tell of a NaN at once."""
    target = {"url": receiver.url, "rules": ["nonfinite"], "group_wait_s": 0}
    environ = {"GRADWATCH_NOTIFY": json.dumps({"oncall": {**target, "group_interval_s": 0}})}
    with NATSServers(tmp_path / "nats") as nats:
        cluster = Cluster(tmp_path, nats.urls, postgres.make_database(), 3, **environ)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()


def told(receiver: Receiver, run: str) -> int:
    """Return how many messages name a run."""
    return sum(run in f"{own['title']}\n{own['message']}" for own in receiver.messages)


def test_the_next_node_tells_once_its_turn_comes(
    notifying: Cluster, receiver: Receiver, peers: NewPeer
) -> None:
    """What was told stays told; what was being told is told again, if it may not have arrived."""
    teller = notifying.owner_of_partition(0)
    keeper, other = (name for name in notifying.nodes if name != teller)
    gateway = notifying.nodes[keeper]
    before, during, after = (notifying.run_of(keeper, name) for name in ("early", "amid", "late"))

    def goes_wrong(run: str) -> None:
        peers(gateway.ingest, run=run).attach().steps(1, *[1.0] * 12, float("nan"))

    wait_until(lambda: gateway.json("/notifiers"), "somebody tells")  # of what happens from now on
    goes_wrong(before)
    receiver.has(before)

    receiver.hang()
    asked = receiver.num_asked
    goes_wrong(during)
    receiver.asked(asked + 1)
    notifying.kill(teller)
    receiver.go_on()
    wait_until(lambda: notifying.owner_of_partition(0) in (keeper, other), "another one tells")
    goes_wrong(after)
    receiver.has(after)

    assert told(receiver, before) == 1
    assert 1 <= told(receiver, during) <= 2
    assert told(receiver, after) == 1
    assert [own["name"] for own in gateway.json("/notifiers")] == ["oncall"]
