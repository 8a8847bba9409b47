"""The node that owns a run is killed: the run goes on at the next one, and no alert is missed."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from gradwatch_wire import Ack, Beat, Welcome
from tests.support.aggregator import Aggregator
from tests.support.cluster import Cluster
from tests.support.peer import NewPeer, Peer
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

RUN = "outlives"


def goes_on(peer: Peer, **step: Any) -> None:
    """Send a step as our client does: HELLO when it is asked for, and again what is not acked."""
    seq = peer.stats(**step)

    def is_stored() -> bool:
        peer.send_as(0, 0, Beat())
        answer = peer.receive()
        if isinstance(answer, Ack) and answer.acked < seq:
            answer = peer.greet()
        assert isinstance(answer, Ack | Welcome)
        if answer.acked == seq - 1:
            peer.seq = seq - 1
            peer.stats(**step)
        return answer.acked >= seq

    wait_until(is_stored, f"record {seq} is stored")


def first_event(node: Aggregator, after: int) -> dict[str, Any]:
    """Return the first event of a node's stream that goes on after a cursor."""
    headers = {"Last-Event-ID": str(after)}
    url = f"{node.url}/alerts/stream?run={RUN}"
    with httpx.stream("GET", url, headers=headers, timeout=PATIENCE_S, trust_env=False) as stream:
        line = next(line for line in stream.iter_lines() if line.startswith("data: "))
    found: dict[str, Any] = json.loads(line.removeprefix("data: "))
    return found


def test_a_run_outlives_the_node_that_owns_it(cluster: Cluster, peers: NewPeer) -> None:
    owner = cluster.owner_of(RUN)
    others = [node for name, node in cluster.nodes.items() if name != owner]
    peer = peers(others[0].ingest, run=RUN).attach()
    peer.steps(1, *[1.0] * 20, float("nan"))

    def alerts(node: Aggregator) -> list[tuple[int, str, str]]:
        found = node.json("/alerts", params={"run": RUN})
        return [(own["cursor"], own["id"], own["state"]) for own in found]

    (first,) = wait_until(lambda: alerts(others[0]), "the alert")
    cluster.kill(owner)
    goes_on(peer, step=22)
    assert cluster.owner_of(RUN) != owner
    for step in range(23, 60):
        peer.stats(step)
    peer.acked()
    resolved = wait_until(lambda: alerts(others[1])[1:], "it is resolved")
    assert [state for *_, state in resolved] == ["resolved"]
    for node in others:
        node.shows(peer)
        assert alerts(node) == [first, *resolved]
        health = node.health(RUN)
        assert (health["records"]["stored"], health["records"]["lost"]) == (peer.seq, 0)
        assert RUN in [each["run"] for each in node.json("/runs")]
        assert first_event(node, after=first[0])["cursor"] == resolved[0][0]
