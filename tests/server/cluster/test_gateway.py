"""Clients at a gateway: an engine somewhere else takes their records, and answers by it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.budgets import Budgets
from gradwatch_server.clock import Clock
from gradwatch_server.cluster.messages import sessions
from gradwatch_server.cluster.messages.gateway import Gateway
from gradwatch_server.cluster.messages.inbox import ClusterInbox
from gradwatch_server.cluster.messages.parcels import Answer, Parcel, pack_parcels, unpack_parcels
from gradwatch_server.cluster.messages.turns import Turns
from gradwatch_server.cluster.ownership.plan import partition_of
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.engine import intake
from gradwatch_server.engine.engine import Engine
from gradwatch_server.engine.intake import NO_BOOT
from gradwatch_server.keys import Keys, add_client, make_keys, read_keys
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_wire import Ack, Beat, Refuse
from gradwatch_wire.keyfile import read_client_key
from tests.support.peer import NewPeer
from tests.support.waiting import wait_until

PARTITIONS = 64


class Node:
    """A gateway, and the engine of whatever it sends on.

    Args:
        directory: Of the engine's store.
        keys: Who may attach.
    """

    def __init__(self, directory: Path, keys: Keys | None = None) -> None:
        self.name = "node-a"
        self.carried: list[tuple[int, list[Parcel]]] = []
        self.is_open = True
        self.live = {self.name}
        self._posted: list[Answer] = []
        use = BudgetUse(Budgets())
        self.gateway = Gateway("tcp://127.0.0.1:0", PARTITIONS, self, keys, use)
        self.inbox = ClusterInbox(self.gateway.endpoint, use, self, Turns())
        self.store = SQLiteStore.open(directory, Clock())
        self.engine = Engine(
            self.store,
            self.inbox,
            Rules(),
            clock=Clock(),
            window_steps=64,
            session_timeout_s=30.0,
            on_alerts=lambda: None,
            on_failure=lambda: None,
            budget_use=use,
        )
        self.engine.start()
        self.gateway.start()

    def carry(self, partition: int, parcels: list[Parcel]) -> bool:
        """Take messages to the engine, as they would look on the way."""
        if not self.is_open:
            return False
        self.carried.append((partition, parcels))
        self.inbox.put(*unpack_parcels(pack_parcels(self.name, parcels)))
        return True

    def is_live(self, node: str) -> bool:
        """Tell whether a node has a lease."""
        return node in self.live

    def post(self, node: str, answer: Answer) -> None:
        """Take an answer."""
        assert node == self.name
        self._posted.append(answer)

    def flush(self) -> None:
        """Give the answers to the gateway."""
        posted, self._posted = self._posted, []
        if posted:
            self.gateway.deliver(posted)

    def close(self) -> None:
        """End all."""
        self.engine.stop()
        self.gateway.stop()
        self.store.close()


NewNode = Callable[..., Node]


@pytest.fixture
def new_node(tmp_path: Path) -> Iterator[NewNode]:
    with contextlib.ExitStack() as stack:

        def make(keys: Keys | None = None) -> Node:
            node = Node(tmp_path / "data", keys)
            stack.callback(node.close)
            return node

        yield make


def test_records_reach_the_partition_of_their_run_and_are_acknowledged(
    new_node: NewNode, peers: NewPeer
) -> None:
    node = new_node()
    peer = peers(node.gateway.endpoint, run="llama").attach()
    peer.steps(1, 1.0, 2.0, float("nan"))
    assert {partition for partition, _ in node.carried} == {partition_of("llama", PARTITIONS)}
    view = wait_until(lambda: node.engine.published.runs.get("llama"))
    assert view is not None

    def is_told() -> bool:
        peer.say(Beat())
        return bool(peer.alerts)

    wait_until(is_told, "the alert at its rank")


def test_one_that_the_gateway_does_not_know_is_made_to_say_hello(
    new_node: NewNode, peers: NewPeer
) -> None:
    node = new_node()
    peer = peers(node.gateway.endpoint)
    assert peer.say(Beat()) == Ack(boot_id=NO_BOOT, acked=0)
    assert node.carried == []


def test_what_could_not_be_sent_on_is_asked_for_again(new_node: NewNode, peers: NewPeer) -> None:
    node = new_node()
    peer = peers(node.gateway.endpoint).attach()
    node.is_open = False
    seq = peer.stats(1)
    answer = peer.receive()
    assert answer == Ack(boot_id=NO_BOOT, acked=0)
    node.is_open = True
    assert peer.greet().acked == seq - 1


def test_one_of_whom_records_vanished_on_the_way_is_made_to_say_hello(
    new_node: NewNode, peers: NewPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "STALLED_S", 0.5)
    node = new_node()
    peer = peers(node.gateway.endpoint).attach()
    monkeypatch.setattr(node, "carry", lambda *_: True)
    peer.stats(1)
    assert peer.receive() == Ack(boot_id=NO_BOOT, acked=0)


def test_another_connection_may_go_on_with_a_session_whose_first_one_is_gone(
    new_node: NewNode, peers: NewPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "SILENT_NS", 10**15)  # nobody is taken for gone by his silence
    node = new_node()
    first = peers(node.gateway.endpoint).attach()
    again = peers(node.gateway.endpoint)
    again.session = first.session
    first.close()
    assert again.greet().acked == first.seq


def test_one_of_a_node_that_is_not_live_is_taken_for_gone(
    new_node: NewNode, peers: NewPeer
) -> None:
    node = new_node()
    peer = peers(node.gateway.endpoint).attach()
    node.live.clear()
    ((session, connection),) = node.engine._intake.peers.items()
    assert not node.inbox.reply(connection, session, Ack(boot_id=NO_BOOT, acked=0))
    assert peer.is_silent(0.2)


def test_nonsense_is_refused_at_the_gateway(new_node: NewNode, peers: NewPeer) -> None:
    node = new_node()
    peer = peers(node.gateway.endpoint)
    peer.send_frames(b"\x01", b"nonsense")
    wait_until(lambda: node.gateway.refused["malformed"], "it is counted")
    assert node.carried == []


def test_whose_key_it_was_decides_at_the_engine(
    new_node: NewNode, peers: NewPeer, tmp_path: Path
) -> None:
    make_keys(tmp_path / "keys")
    key = read_client_key(add_client(tmp_path / "keys", "trainer", ["gpt-*"]))
    node = new_node(read_keys(tmp_path / "keys"))
    assert peers(node.gateway.endpoint, run="gpt-1", key=key).greet().acked == 0
    other = peers(node.gateway.endpoint, run="llama", key=key)
    assert isinstance(other.say(other.greeting), Refuse)
