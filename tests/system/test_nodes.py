"""Nodes that share a PostgreSQL database: real processes that are killed, stopped and ended."""

from __future__ import annotations

import math
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.support.aggregator import GRADWATCH, Aggregator
from tests.support.peer import Peer
from tests.support.postgres import PostgresServer
from tests.support.postgres_database import FreshDatabase
from tests.support.records import stats_of
from tests.support.relay import Relay
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow

LOGGED = "SELECT count(*) FROM gradwatch.log WHERE is_head = 0"


class Nodes:
    """A node that has the lease and one that waits for it."""

    def __init__(self, directory: Path, database: FreshDatabase) -> None:
        self.database = database
        self.directory = directory
        names = ("one", "two")
        self.has_lease, self.waits = (
            Aggregator(directory / name / "data", GRADWATCH_STORE=database.url) for name in names
        )
        self.has_lease.start()
        self.waits.start()

    def exchange(self) -> None:
        """Wait until the second one serves; it is the first one from then on."""
        self.has_lease, self.waits = self.waits, self.has_lease
        wait_until(self.has_lease.answers, "the other node takes over")


def gradwatch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [GRADWATCH, *arguments], check=False, capture_output=True, text=True, timeout=PATIENCE_S
    )


def is_waiting(node: Aggregator) -> bool:
    try:
        return bool(node.json("/healthz")["status"] == "waiting")
    except httpx.TransportError:  # its port is opened anew
        return False


@pytest.fixture
def nodes(tmp_path: Path, postgres: PostgresServer) -> Iterator[Nodes]:
    made = Nodes(tmp_path, FreshDatabase(postgres))
    yield made
    for node in (made.has_lease, made.waits):
        node.close()


@pytest.fixture
def peer(nodes: Nodes) -> Iterator[Callable[[], Peer]]:
    """Connect to the node that has the lease, and go on with the same session."""
    peers: list[Peer] = []

    def connect() -> Peer:
        made = nodes.has_lease.peer(run="gpt")
        if peers:
            made.session, made.seq = peers[-1].session, peers[-1].seq
            made.greet()
        else:
            made.attach()
        peers.append(made)
        return made

    yield connect
    for made in peers:
        made.close()


def test_a_node_that_waits_says_so_and_sends_people_to_the_other(nodes: Nodes) -> None:
    waits, has_lease = nodes.waits, nodes.has_lease
    assert waits.announced["ingest"].startswith("closed")
    assert waits.announced["data"] == "postgresql://" + nodes.database.url.partition("@")[2]
    answer = waits.get("/readyz")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")
    assert f"the node at {has_lease.url} has the lease" in answer.json()["detail"]
    assert waits.json("/healthz")["status"] == "waiting"
    assert waits.get("/metrics").status_code == 503  # numbers of the other one are not its own
    for command in ("runs", "tail"):
        told = gradwatch(command, "--url", waits.url)
        assert told.returncode == 1
        assert told.stderr == (
            f"gradwatch: this node waits: the node at {has_lease.url} has the lease; "
            f"ask {has_lease.url}\n"
        )
    doctor = gradwatch(
        *("doctor", "--store", nodes.database.url, "--http", waits.url.partition("//")[2]),
        *("--ingest", "tcp://127.0.0.1:0"),
    ).stdout
    assert f"has the lease: {has_lease.url}; waiting: {waits.url}" in doctor
    assert "is taken by the aggregator that has this data" in doctor
    answer = waits.get("/runs?sort=name")
    assert (answer.status_code, answer.headers["location"]) == (
        307,
        f"{has_lease.url}/runs?sort=name",
    )
    assert waits.stop() == 0
    for node in ("one", "two"):
        assert [path.name for path in (nodes.directory / node).iterdir()] == ["stderr.txt"]


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_another_node_goes_on_with_all_that_was_acknowledged(
    fault: signal.Signals, nodes: Nodes, peer: Callable[[], Peer]
) -> None:
    first = peer()
    first.steps(0, *(1.0 + step / 64 for step in range(20)))
    first.stats(20, (math.nan, 1.0))
    wait_until(lambda: nodes.has_lease.json("/alerts"), "the alert")
    before = nodes.has_lease
    if fault is signal.SIGSTOP:
        before.send(fault)
    else:
        before.stop(fault)
    nodes.exchange()

    second = peer()
    second.steps(21, 1.0, 1.0)
    nodes.has_lease.reaches("gpt", 22)
    records = nodes.has_lease.health("gpt")["records"]
    assert (records["stored"], records["lost"]) == (24, 0)
    states = [event["state"] for event in nodes.has_lease.json("/alerts", params={"after": 0})]
    assert states.count("firing") == 1
    if fault is signal.SIGSTOP:
        logged = nodes.database.execute(LOGGED)
        before.send(signal.SIGCONT)
        wait_until(lambda: is_waiting(before), "it waits again")
        assert "another node has taken over" in before.errors
        assert nodes.database.execute(LOGGED) == logged
    else:
        before.start()
    nodes.has_lease.stop(signal.SIGKILL)
    nodes.exchange()
    assert nodes.has_lease.health("gpt")["records"] == records


def test_a_node_that_is_cut_off_from_the_database_writes_nothing(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    """Nothing answers it and nothing refuses it, as where a network is cut."""
    database = FreshDatabase(postgres)
    there = database.url.rpartition("@")[2].partition("/")[0]
    relay = Relay(f"tcp://{there}")
    through = database.url.replace(there, relay.endpoint.removeprefix("tcp://"))
    cut_off = Aggregator(tmp_path / "one" / "data", GRADWATCH_STORE=through)
    other = Aggregator(tmp_path / "two" / "data", GRADWATCH_STORE=database.url)
    try:
        cut_off.start()
        other.start()
        first = cut_off.peer(run="gpt").attach()
        first.steps(0, 1.0, 1.0)
        cut_off.reaches("gpt", 1)
        relay.hang()
        first.send(stats_of(2, [1.0, 1.0]))
        wait_until(other.answers, "the other node takes over")

        second = other.peer(run="gpt")
        second.session, second.seq = first.session, first.seq - 1
        second.greet()
        second.steps(2, 1.0)
        other.reaches("gpt", 2)
        relay.resume()
        wait_until(lambda: is_waiting(cut_off), "it waits")
        assert other.health("gpt")["records"]["stored"] == 4
    finally:
        for node in (cut_off, other):
            node.close()
        relay.close()


def test_a_wrong_address_is_one_line(tmp_path: Path) -> None:
    for url, message in (
        ("mysql://db/gradwatch", "should be a URL such as postgresql://user@host/database"),
        ("postgresql://127.0.0.1:1/none", "PostgreSQL cannot make the tables"),
    ):
        node = Aggregator(tmp_path / "data", "--store", url)
        with pytest.raises(AssertionError):
            node.start()
        node.close()
        last = node.errors.splitlines()[-1]
        assert last.startswith("gradwatch: ")
        assert message in last
        assert "Traceback" not in node.errors


def test_the_database_is_away_for_a_while(
    nodes: Nodes, peer: Callable[[], Peer], postgres: PostgresServer
) -> None:
    """Nobody writes meanwhile; afterwards one of both goes on, and has all."""
    first = peer()
    first.steps(0, *[1.0] * 5)
    nodes.has_lease.reaches("gpt", 4)
    postgres.kill()
    try:
        wait_until(lambda: nodes.has_lease.get("/readyz").status_code == 503, "it says so")
    finally:
        postgres.start()

    both = (nodes.has_lease, nodes.waits)

    def has_all(node: Aggregator) -> bool:
        """Tell whether a node answers for the run; one that waits or starts anew does not."""
        with suppress(httpx.TransportError):
            answer = node.get("/runs/gpt/health")
            return answer.is_success and answer.json()["records"]["stored"] == 6
        return False

    wait_until(lambda: sum(map(has_all, both)) == 1, "one goes on, and has all")

    def are_up() -> bool:
        """Tell whether both listen; one that lost the lease opens its port anew."""
        with suppress(httpx.TransportError):
            return all(httpx.get(f"{own.url}/healthz").is_success for own in both)
        return False

    wait_until(are_up, "both listen")
