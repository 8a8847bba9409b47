"""With keys: whichever node is asked, it asks for a token and a key, and passes on who came."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gradwatch_server.keys import add_client, make_keys
from gradwatch_wire import Refuse
from gradwatch_wire.keyfile import read_client_key
from tests.support.aggregator import Aggregator
from tests.support.cluster import Cluster
from tests.support.nats_servers import NATSServers
from tests.support.peer import NewPeer
from tests.support.postgres import PostgresServer
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Keys: of a client that may write all runs, and of one that may write some."""
    make_keys(tmp_path / "keys")
    add_client(tmp_path / "keys", "team", ["team-*"])
    return tmp_path / "keys"


@pytest.fixture
def tokens(folder: Path) -> dict[str, dict[str, str]]:
    """The header of each kind of token."""
    found = tomllib.loads((folder / "tokens.toml").read_text("utf-8"))
    return {kind: {"Authorization": f"Bearer {token}"} for kind, token in found.items()}


@pytest.fixture
def locked(
    tmp_path: Path, folder: Path, tokens: dict[str, dict[str, str]], postgres: PostgresServer
) -> Iterator[Cluster]:
    """Two nodes that ask everyone; the tests show what may read."""
    environ = {"GRADWATCH_KEYS_DIR": str(folder)}
    with NATSServers(tmp_path / "nats") as nats:
        cluster = Cluster(tmp_path, nats.urls, postgres.make_database(), 2, **environ)
        for node in cluster.nodes.values():
            node.headers = tokens["read"]
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()


def post(node: Aggregator, path: str, headers: dict[str, str]) -> httpx.Response:
    """Acknowledge an alert, or ask for something else that changes."""
    url, body = node.url + path, {"by": "me"}
    return httpx.post(url, json=body, headers=headers, timeout=PATIENCE_S, trust_env=False)


def test_another_node_is_no_way_around_keys(
    locked: Cluster, peers: NewPeer, folder: Path, tokens: dict[str, dict[str, str]]
) -> None:
    """Neither to read, nor to change something, nor to write a run of others."""
    asked, owner = locked.nodes.values()
    run, foreign = locked.run_of("b", "team"), locked.run_of("b", "other")
    key = read_client_key(folder / "team.key")
    peer = peers(asked.ingest, key=key, run=run).attach()
    peer.steps(1, *[1.0] * 12, float("nan"))
    asked.shows(peer)
    stranger = peers(asked.ingest, key=key, run=foreign)
    reason = f"the key of client 'team' may not write run '{foreign}'"
    assert stranger.say(stranger.greeting) == Refuse(reason=reason)

    path = f"/runs/{run}/health"
    for node in (asked, owner):
        for headers in ({}, {"Authorization": "Bearer guessed"}):
            with httpx.Client(headers=headers, timeout=PATIENCE_S, trust_env=False) as client:
                assert client.get(node.url + path).status_code == httpx.codes.UNAUTHORIZED
                forwarded = client.get(node.url + path, headers={"gradwatch-forwarded": "a"})
                assert forwarded.status_code == httpx.codes.UNAUTHORIZED
        assert [own["run"] for own in node.json("/runs")] == [run]
        assert node.health(run)["records"]["stored"] == peer.seq

    (alert, *_) = wait_until(lambda: asked.json("/alerts", params={"run": run}), "the alert")
    ack = f"/alerts/{alert['id']}/ack"
    assert post(asked, ack, tokens["read"]).status_code == httpx.codes.FORBIDDEN
    assert post(asked, ack, tokens["write"]).json()["acknowledged"]["by"] == "me"


def test_a_token_of_a_stream_is_good_on_every_node(locked: Cluster) -> None:
    """A browser asks one node for it, and reads from another one after a failover."""
    first, second = locked.nodes.values()
    answer = post(first, "/alerts/stream-token", first.headers)
    token = answer.raise_for_status().json()["token"]
    for node in (first, second):
        url = f"{node.url}/alerts/stream"
        given = {"params": {"token": token}, "timeout": PATIENCE_S, "trust_env": False}
        with httpx.stream("GET", url, **given) as stream:  # type: ignore[arg-type]
            assert stream.status_code == httpx.codes.OK
            assert next(stream.iter_lines())
    wrong = httpx.get(f"{second.url}/alerts/stream", params={"token": "x"}, trust_env=False)
    assert wrong.status_code == httpx.codes.UNAUTHORIZED
