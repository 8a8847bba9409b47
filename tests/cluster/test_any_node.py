"""Whichever node is asked, the answer is that of a single process."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gradwatch_server.cluster.ownership.plan import partition_of
from tests.support.aggregator import Aggregator
from tests.support.cluster import Cluster
from tests.support.peer import NewPeer
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

RUNS = ("alpha", "beta", "gamma", "delta")


def events(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """Yield name and data of the events of a stream."""
    name = "message"
    for line in lines:
        kind, _, value = line.partition(": ")
        if kind == "event":
            name = value
        elif kind == "data":
            yield name, json.loads(value)
            name = "message"


def test_any_node_answers_for_all(cluster: Cluster, peers: NewPeer) -> None:
    nodes = list(cluster.nodes.values())
    for number, run in enumerate(RUNS):
        peer = peers(nodes[number % 3].ingest, run=run).attach()
        peer.steps(1, *[1.0] * 12, float("nan"))
        for node in nodes:
            node.shows(peer)
    assert len({cluster.owner_of(run) for run in RUNS}) > 1
    wait_until(lambda: len(nodes[0].json("/alerts")) == len(RUNS), "all alerts")
    alerts = nodes[0].json("/alerts")
    for node in nodes:
        rows = node.json("/runs?sort=name")
        assert [own["run"] for own in rows] == sorted(RUNS)
        assert {own["status"] for own in rows} == {"critical"}
        assert node.json("/alerts") == alerts
        assert node.json(f"/alerts/{alerts[0]['id']}")["events"]
        assert node.get("/runs/nobody").status_code == 404
        assert node.get("/").headers["content-type"].startswith("text/html")
        assert "gradwatch_ready 1" in node.get("/metrics").text


def test_metrics_say_who_owns_what_and_what_was_sent_on(cluster: Cluster) -> None:
    epochs: dict[str, float] = {}
    sums = defaultdict[str, float](float)
    for node in cluster.nodes.values():
        for family in text_string_to_metric_families(node.get("/metrics").text):
            for sample in family.samples:
                if sample.name == "gradwatch_partition_epoch":
                    assert sample.labels["partition"] not in epochs
                    epochs[sample.labels["partition"]] = sample.value
                else:
                    sums[sample.name + sample.labels.get("result", "")] += sample.value
    assert sorted(map(int, epochs)) == list(range(64))
    assert min(epochs.values()) > 0
    assert sums["gradwatch_cluster_nodes"] == 3 * 3
    assert sums["gradwatch_partitions_without_owner"] == 0
    assert sums["gradwatch_partition_engines"] == len({partition_of(run, 64) for run in RUNS})
    assert sums["gradwatch_takeovers_total"] >= len({partition_of(run, 64) for run in RUNS})
    assert sums["gradwatch_takeover_seconds_total"] > 0
    assert sums["gradwatch_forwarded_messages_totalsent"] > 0
    assert sums["gradwatch_clock_difference_seconds"] < 60


def test_pages_of_runs_go_on_at_another_node(cluster: Cluster) -> None:
    first, second, third = cluster.nodes.values()
    path, found = "/runs?sort=name&limit=2", []
    for node in (first, second, third):
        answer = node.get(path).raise_for_status()
        found += [own["run"] for own in answer.json()]
        if "link" not in answer.headers:
            break
        path = answer.links["next"]["url"]
    assert found == sorted(RUNS)
    changes = first.json("/runs?since=0")
    assert changes["all"]
    assert len(changes["runs"]) == len(RUNS)
    assert first.json(f"/runs?since={changes['since']}")["runs"] == []
    assert second.json(f"/runs?since={changes['since']}")["all"]


def test_an_alert_is_acknowledged_on_a_node_that_does_not_own_its_run(cluster: Cluster) -> None:
    node = next(own for name, own in cluster.nodes.items() if name != cluster.owner_of("alpha"))
    (alert, *_) = node.json("/alerts?run=alpha")
    url = f"{node.url}/alerts/{alert['id']}/ack"
    answer = httpx.post(url, json={"by": "me"}, timeout=PATIENCE_S, trust_env=False)
    assert answer.raise_for_status().json()["acknowledged"]["by"] == "me"


def test_a_silence_made_on_one_node_holds_on_all(cluster: Cluster, peers: NewPeer) -> None:
    first, second, _ = cluster.nodes.values()
    new = {"run": "quiet", "for_s": 600, "by": "me"}
    made = httpx.post(f"{first.url}/silences", json=new, timeout=PATIENCE_S, trust_env=False)
    silence = made.raise_for_status().json()["id"]

    def there(node: Aggregator) -> list[str]:
        return [own["id"] for own in node.json("/silences")]

    wait_until(lambda: there(second) == [silence], "the silence on another node")
    peer = peers(second.ingest, run="quiet").attach()
    peer.steps(1, float("nan"))

    def is_silenced() -> bool:
        return any(own["silenced"] for own in first.json("/runs/quiet/alerts"))

    wait_until(is_silenced, "an alert that nobody is told of")
    gone = httpx.delete(f"{second.url}/silences/{silence}", timeout=PATIENCE_S, trust_env=False)
    assert gone.status_code == 204
    wait_until(lambda: there(first) == [], "its end on the first node")


@pytest.mark.parametrize("query", ["ticks=true", "ticks=true&run=beta"])
def test_a_stream_tells_what_moves_on_another_node(
    cluster: Cluster, peers: NewPeer, query: str
) -> None:
    node = next(own for name, own in cluster.nodes.items() if name != cluster.owner_of("beta"))
    peer = peers(node.ingest, run="beta").attach()
    url = f"{node.url}/alerts/stream?{query}"
    with httpx.stream("GET", url, timeout=PATIENCE_S, trust_env=False) as stream:
        found = events(stream.iter_lines())
        assert next(found)[0] == "hello"
        peer.steps(1, 1.0, 1.0, float("inf"))
        told = set()
        for name, data in found:
            # A tick tells what moved in the same second, so other runs too if all are asked for.
            runs = {data["run"]} if name == "message" else set(data["runs"])
            assert runs == {"beta"} or "run=" not in query
            if "beta" in runs:
                told.add(name)
            if told >= {"message", "tick"}:
                break
