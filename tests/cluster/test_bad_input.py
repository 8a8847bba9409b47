"""What a node cannot work with is told in one line, and nothing is acknowledged meanwhile."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from nats.aio.client import Client
from nats.js import api

from gradwatch_server.cluster.ownership.node_record import NodeRecord
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.key_value import KeyValue
from tests.support.aggregator import Aggregator
from tests.support.cluster import Cluster
from tests.support.command import run_command
from tests.support.nats_servers import NATSServers
from tests.support.peer import NewPeer
from tests.support.postgres import STRANGER, PostgresServer
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

LEASE_S: Final = 1.0
USER: Final = "ada:one@"


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NATSServers]:
    """One server that asks for a password."""
    directory = tmp_path_factory.mktemp("bad-input")
    extra = "authorization: {user: ada, password: one}"
    with NATSServers(directory / "nats", extra=extra) as servers:
        yield servers


@pytest.fixture(scope="module")
def url(nats: NATSServers) -> str:
    """Where it is, with the password."""
    return nats.urls[0].replace("//", f"//{USER}")


@pytest.fixture(scope="module")
def connection(url: str) -> Iterator[Connection]:
    """What an operator has."""
    with Connection([url]) as connection:
        yield connection


def test_what_a_node_cannot_start_with_is_one_line(
    tmp_path: Path, nats: NATSServers, url: str, connection: Connection, postgres: PostgresServer
) -> None:
    ledger = postgres.make_database()
    wrong = api.StreamConfig(
        name="WRONG_LOG",
        subjects=["wrong.heads.*", "wrong.log.*"],
        retention=api.RetentionPolicy.WORK_QUEUE,
    )
    connection.call(lambda client: client.jetstream().add_stream(wrong), "somebody else's")
    stranger = ledger.replace("gradwatch:", f"{STRANGER}:")
    cases: dict[str, tuple[Mapping[str, str], str]] = {
        "nats": (
            {"GRADWATCH_CLUSTER": url.replace(USER, "ada:old@")},
            "it does not take the user and password",
        ),
        "ledger": ({"GRADWATCH_LEDGER": stranger}, "does not let us in"),
        "wrong": ({}, "the stream WRONG_LOG was made with retention = workqueue, and limits is"),
    }

    def start(namespace: str) -> subprocess.CompletedProcess[str]:
        environ = {
            "GRADWATCH_CLUSTER": url,
            "GRADWATCH_CLUSTER_NAMESPACE": namespace,
            "GRADWATCH_CLUSTER_REPLICAS": "1",
            "GRADWATCH_LEDGER": ledger,
        } | dict(cases[namespace][0])
        ports = ("--http", "127.0.0.1:0", "--ingest", "tcp://127.0.0.1:0")
        return run_command(tmp_path, "serve", *ports, **environ)

    with ThreadPoolExecutor(len(cases)) as pool:
        ended = dict(zip(cases, pool.map(start, cases), strict=True))
    for namespace, (_, says) in cases.items():
        (line,) = ended[namespace].stderr.splitlines()
        assert says in line, line
        assert ended[namespace].returncode == 1
        assert "S3kret" not in line


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory, url: str, postgres: PostgresServer
) -> Iterator[Aggregator]:
    """A node that runs."""
    cluster = Cluster(
        tmp_path_factory.mktemp("node"),
        [url],
        postgres.make_database(),
        1,
        GRADWATCH_CLUSTER_NAMESPACE="running",
        GRADWATCH_CLUSTER_LEASE_S=str(LEASE_S),
        GRADWATCH_CLUSTER_LOG_MAX_BYTES=str(64 << 20),
    )
    try:
        cluster.start()
        yield cluster.nodes["a"]
    finally:
        cluster.close()


def says(node: Aggregator, *words: str) -> None:
    """Wait until the node is not ready, and says so with these words."""

    def does() -> bool:
        answer = node.get("/readyz")
        return answer.status_code == 503 and all(own in answer.json()["detail"] for own in words)

    wait_until(does, f"{words} in /readyz")


def limit_log(connection: Connection, max_bytes: int | None) -> None:
    """Let the log have so many bytes, None for as many as it has."""

    async def limit(client: Client) -> None:
        info = await client.jetstream().stream_info("RUNNING_LOG")
        most = info.state.bytes if max_bytes is None else max_bytes
        await client.jetstream().update_stream(replace(info.config, max_bytes=most))

    connection.call(limit, "the limit")


def test_a_full_log_takes_nothing_until_there_is_room(
    node: Aggregator, connection: Connection, peers: NewPeer
) -> None:
    """The node keeps its lease, as leases have room still; and it goes on by itself."""
    leases = KeyValue(connection, "running-nodes", ttl_s=LEASE_S)

    def revision() -> int:
        return sum(own.revision for own in leases.entries().values())

    peer = peers(node.ingest, run="full").attach()
    peer.steps(1, 1.0, 1.0)
    limit_log(connection, None)
    seq = peer.stats(3)
    says(node, "the stream is full", "cluster_log_max_bytes")
    two_leases = revision() + 6
    wait_until(lambda: revision() >= two_leases, "the lease is renewed")
    says(node, "the stream is full")
    assert peer.is_silent()
    limit_log(connection, 64 << 20)
    peer.acked(seq)
    wait_until(lambda: node.get("/readyz").json() == {"status": "ready"}, "it is ready")
    node.shows(peer)


def test_a_password_that_nats_takes_no_longer_is_told(
    nats: NATSServers, node: Aggregator, peers: NewPeer
) -> None:
    (server,) = nats.servers
    server.change("password: one", "password: two")
    says(node, "NATS: no NATS server lets us in", "does not take the user and password")
    server.change("password: two", "password: one")
    wait_until(node.answers, "it is ready")
    peer = peers(node.ingest, run="again").attach()
    peer.steps(1, 1.0)
    node.shows(peer)


def test_a_log_that_is_gone_is_told_and_so_is_what_was_in_it(
    node: Aggregator, connection: Connection, peers: NewPeer
) -> None:
    """First while the node runs, then by the one that starts without it."""
    peer = peers(node.ingest, run="gone").attach()
    peer.steps(1, 1.0, 1.0)
    node.shows(peer)

    async def delete(client: Client) -> None:
        await client.jetstream().delete_stream("RUNNING_LOG")

    connection.call(delete, "delete the log")
    says(node, "the stream RUNNING_LOG is not there any more", "put a backup of it back")
    assert node.stop() == 0
    node.start()
    wait_until(lambda: "lost" in node.get("/readyz").json(), "what is lost")
    answer = node.get("/readyz")
    assert answer.status_code == 200
    assert "are lost, which were in another stream or an older copy of it" in answer.json()["lost"]
    assert "gradwatch_entries_missing 0" not in node.get("/metrics").text


def test_a_clock_that_is_another_one_is_told_and_all_goes_on(
    node: Aggregator, connection: Connection
) -> None:
    """A lease says that it is an hour later where it was written."""
    leases = KeyValue(connection, "running-nodes", ttl_s=LEASE_S)
    other, revisions = NodeRecord("other", "1", "http://127.0.0.1:1", ""), [0]

    def is_told() -> bool:
        value = other.encode(LEASE_S, time.time_ns() + 3_600 * 10**9)
        written = leases.update("other", value, revisions[-1]) or leases.create("other", value)
        revisions.append(written or 0)
        answer = node.get("/readyz")
        return answer.is_success and "the clock of node other is 36" in str(answer.json())

    wait_until(is_told, "the other clock")
    text = node.get("/metrics").text
    told = re.search(r"^gradwatch_clock_difference_seconds (\S+)", text, re.MULTILINE)
    assert told is not None
    assert float(told[1]) == pytest.approx(3_600, abs=60)
    wait_until(lambda: "clocks" not in node.get("/readyz").json(), "its lease runs out")
