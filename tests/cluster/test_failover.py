"""The node that owns a run is killed: the run goes on at the next one, and no alert is missed."""

from __future__ import annotations

import json
import signal
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
    sent = {seq: step, seq - 1: {"step": step["step"] - 1, "l2": (float("nan"), 1.0)}}

    def is_stored() -> bool:
        peer.send_as(0, 0, Beat())
        answer = peer.receive()
        if isinstance(answer, Ack) and answer.acked < seq:
            answer = peer.greet()
            peer.seq = answer.acked
            for number in range(answer.acked + 1, seq + 1):
                peer.stats(**sent[number])
        assert isinstance(answer, Ack | Welcome)
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


def alerts(node: Aggregator, run: str) -> list[tuple[int, str, str]]:
    """Return the alert events of a run: cursor, id and state."""
    found = node.json("/alerts", params={"run": run})
    return [(own["cursor"], own["id"], own["state"]) for own in found]


def test_an_owner_that_was_paused_past_its_lease_can_store_nothing(
    cluster: Cluster, peers: NewPeer
) -> None:
    run = "paused"
    name = cluster.owner_of(run)
    owner = cluster.nodes[name]
    other = next(node for each, node in cluster.nodes.items() if each != name)
    peer = peers(other.ingest, run=run).attach()
    peer.steps(1, *[1.0] * 20)
    owner.send(signal.SIGSTOP)
    try:
        peer.stats(21, (float("nan"), 1.0))  # waits for the owner, who hears of it too late
        goes_on(peer, step=22)
    finally:
        owner.send(signal.SIGCONT)
    wait_until(lambda: alerts(other, run), "the alert")
    cluster.settle()
    goes_on(peer, step=23)
    (event,) = [own for own in alerts(other, run) if own[2] == "firing"]
    other.shows(peer)
    health = other.health(run)
    assert (health["records"]["stored"], health["records"]["lost"]) == (peer.seq, 0)
    for node in cluster.nodes.values():
        assert [own for own in alerts(node, run) if own[2] == "firing"] == [event]


def test_a_run_outlives_the_node_that_owns_it(cluster: Cluster, peers: NewPeer) -> None:
    owner = cluster.owner_of(RUN)
    others = [node for name, node in cluster.nodes.items() if name != owner]
    peer = peers(others[0].ingest, run=RUN).attach()
    peer.steps(1, *[1.0] * 20, float("nan"))

    (first,) = wait_until(lambda: alerts(others[0], RUN), "the alert")
    cluster.kill(owner)
    goes_on(peer, step=22)
    assert cluster.owner_of(RUN) != owner
    for step in range(23, 60):
        peer.stats(step)
    peer.acked()
    resolved = wait_until(lambda: alerts(others[1], RUN)[1:], "it is resolved")
    assert [state for *_, state in resolved] == ["resolved"]
    for node in others:
        node.shows(peer)
        assert alerts(node, RUN) == [first, *resolved]
        health = node.health(RUN)
        assert (health["records"]["stored"], health["records"]["lost"]) == (peer.seq, 0)
        assert RUN in [each["run"] for each in node.json("/runs")]
        assert first_event(node, after=first[0])["cursor"] == resolved[0][0]
