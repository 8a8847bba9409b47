"""Nodes with leases in real NATS: each partition has one owner, also when one falls silent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from gradwatch_server.cluster.ownership.membership import Membership
from gradwatch_server.cluster.ownership.node_record import NodeRecord, decode_node
from gradwatch_server.cluster.ownership.plan import wanted_owner
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.errors import FullError, UnreachableError
from gradwatch_server.nats.jetstream import JetStreamStream
from gradwatch_server.nats.key_value import KeyValue
from tests.support.nats_servers import NATSServers
from tests.support.waiting import wait_until

PARTITIONS = 8
LEASE_S = 1.5
_NUMBERS = count(1)


class Holder:
    """Holds what it is told to, with the epoch of each."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.lost: list[int] = []
        self.is_saving = False
        self.num_failures = 0
        self.in_the_way: dict[int, int] = {}

    def outranked(self, partition: int) -> int | None:
        return self.in_the_way.get(partition)

    def own(self, partition: int, epoch: int) -> None:
        assert partition not in self.held
        if self.num_failures:
            self.num_failures -= 1
            raise UnreachableError("subscribe: no answer in time")
        self.held[partition] = epoch

    def release(self, partition: int) -> None:
        self.held.pop(partition, None)

    def lose(self, partition: int) -> None:
        self.held.pop(partition, None)
        self.lost.append(partition)

    def has_ended(self, partition: int) -> bool:
        return partition not in self.held and not self.is_saving


class Node:
    """A membership with a connection of its own."""

    def __init__(
        self,
        servers: NATSServers,
        namespace: str,
        name: str,
        lease_s: float = LEASE_S,
        ttl_s: float | None = None,
    ) -> None:
        self.holder = Holder()
        self.connection = Connection(servers.urls, name)
        record = NodeRecord(name, "0.1", f"http://{name}", f"tcp://{name}:1")
        self.membership = Membership(
            record,
            KeyValue(
                self.connection, f"{namespace}-nodes", ttl_s=ttl_s or lease_s, timeout_s=lease_s
            ),
            KeyValue(self.connection, f"{namespace}-owners", timeout_s=lease_s),
            PARTITIONS,
            lease_s,
            self.holder,
        )
        self.membership.start()

    def close(self) -> None:
        self.membership.stop()
        self.connection.close()


NewNode = Callable[[str], Node]


@pytest.fixture
def new_node(nats_servers: NATSServers) -> Iterator[NewNode]:
    namespace = f"membership{next(_NUMBERS)}"
    with contextlib.ExitStack() as stack:

        def make(name: str) -> Node:
            node = Node(nats_servers, namespace, name)
            stack.callback(node.close)
            return node

        yield make


def own_all(*nodes: Node) -> bool:
    """Tell whether the nodes hold all partitions, each one of them, and know of each other."""
    held = [partition for node in nodes for partition in node.holder.held]
    names = {node.membership.node for node in nodes}
    return sorted(held) == list(range(PARTITIONS)) and all(
        node.membership.live.keys() == names and node.holder.held for node in nodes
    )


def own_theirs(*nodes: Node) -> bool:
    """Tell whether the nodes hold all partitions, and none is to move any more."""
    names = [node.membership.node for node in nodes]
    return own_all(*nodes) and all(
        wanted_owner(partition, names) == node.membership.node
        for node in nodes
        for partition in node.holder.held
    )


@pytest.mark.slow
def test_partitions_go_to_who_lives_and_each_owner_has_a_later_epoch(new_node: NewNode) -> None:
    first = new_node("a")
    wait_until(lambda: own_all(first), "the only node has all")
    before = dict(first.holder.held)
    second = new_node("b")
    wait_until(lambda: own_all(first, second), "both have a share")
    assert all(epoch > before[own] for own, epoch in second.holder.held.items())
    assert first.holder.lost == []
    own = next(iter(second.holder.held))
    wait_until(lambda: first.membership.owner_of(own) is not None, "the first one knows it")
    owner = first.membership.owner_of(own)
    assert owner is not None
    assert owner.http == "http://b"

    second.membership.stop()
    wait_until(lambda: own_all(first), "what was given up is taken at once")
    third = new_node("b")
    wait_until(lambda: own_all(first, third), "one of the same name has its share")

    third.connection.close()  # it is cut off, and cannot say so
    wait_until(lambda: not third.membership.has_lease(), "its lease runs out")
    assert third.membership.fault is not None
    wait_until(lambda: own_all(first), "the first one takes what it had")
    assert third.holder.held  # it hears of nothing, and can write nothing
    assert third.holder.lost == []


@pytest.mark.slow
def test_a_node_is_gone_after_its_lease_however_long_its_key_stays(
    nats_servers: NATSServers,
) -> None:
    """The time of the bucket is that of whoever asked for the longest."""
    with contextlib.ExitStack() as stack:
        nodes = [Node(nats_servers, "ttl", name, ttl_s=600.0) for name in "ab"]
        for node in nodes:
            stack.callback(node.close)
        wait_until(lambda: own_theirs(*nodes), "each has its share")
        nodes[1].connection.close()
        wait_until(lambda: own_all(nodes[0]), "the first one takes what it had")


@pytest.mark.slow
def test_what_is_being_given_to_a_node_that_goes_is_taken_again(new_node: NewNode) -> None:
    first = new_node("a")
    wait_until(lambda: own_all(first), "the only node has all")
    first.holder.is_saving = True
    second = new_node("b")
    wait_until(lambda: len(first.holder.held) < PARTITIONS, "it begins to give up some")
    second.membership.stop()
    wait_until(lambda: first.membership.live.keys() == {"a"}, "nobody wants them any more")
    first.holder.is_saving = False
    wait_until(lambda: own_all(first), "it has all again")


@pytest.mark.slow
def test_what_could_not_be_begun_is_acquired_again(new_node: NewNode) -> None:
    node = new_node("a")
    wait_until(lambda: own_all(node), "it has all")
    other = new_node("b")
    other.holder.num_failures = 3
    wait_until(lambda: own_all(node, other), "both have a share")
    assert other.holder.num_failures == 0


@pytest.mark.slow
def test_a_full_jetstream_is_told_until_there_is_room(tmp_path: Path) -> None:
    """Leases are refused as all else is; once there is room it goes on by itself."""
    with NATSServers(tmp_path, max_file="300KB") as servers, contextlib.ExitStack() as stack:
        node = Node(servers, "full", "a")
        stack.callback(node.close)
        wait_until(lambda: own_all(node), "it has all")
        others = JetStreamStream(node.connection, "OTHERS")
        others.ensure(["others"], replicas=1, max_bytes=None)

        def fill() -> None:
            after = 0
            for number in range(9):
                after = others.append(
                    "others",
                    bytes(90_000),
                    message_id=f"{number}",
                    after=after,
                    epoch=0,
                    headers={},
                )

        with pytest.raises(FullError):
            fill()
        wait_until(lambda: "JetStream is full" in (node.membership.fault or ""), "what is full")
        wait_until(lambda: not node.membership.has_lease(), "its lease runs out")
        before = dict(node.holder.held)
        (server,) = servers.servers
        server.stop()
        server.change("300KB", "4GB")
        server.start()
        wait_until(lambda: node.membership.has_lease() and own_all(node), "it goes on")
        assert node.holder.held == before


@pytest.mark.slow
def test_nodes_keep_what_they_own_while_no_lease_can_be_renewed(tmp_path: Path) -> None:
    """All leases run out; those that are back first wait for the others."""
    with NATSServers(tmp_path) as servers, contextlib.ExitStack() as stack:
        nodes = [Node(servers, "away", name, lease_s=4.0) for name in "ab"]
        for node in nodes:
            stack.callback(node.close)
        wait_until(lambda: own_theirs(*nodes), "each has its share")
        before = [dict(node.holder.held) for node in nodes]
        (server,) = servers.servers
        server.kill()
        wait_until(lambda: not any(own.membership.has_lease() for own in nodes), "no lease holds")
        assert [node.holder.held for node in nodes] == before
        server.start()
        wait_until(lambda: all(own.membership.has_lease() for own in nodes), "all are back")
        wait_until(lambda: own_all(*nodes), "and know of each other")
        assert [node.holder.held for node in nodes] == before
        assert [node.holder.lost for node in nodes] == [[], []]


@pytest.mark.parametrize("value", [b"", b"[]", b"{}", b'{"id": "a"}', b"\xff"])
def test_a_lease_that_cannot_be_read_is_passed_over(value: bytes) -> None:
    assert decode_node(value) is None


def test_a_later_version_may_say_more_of_itself() -> None:
    value = b'{"id": "a", "version": "9", "http": "h", "ingest": "i", "more": [1]}'
    assert decode_node(value) == NodeRecord("a", "9", "h", "i")


@pytest.mark.slow
def test_an_epoch_that_is_in_the_way_is_exceeded_by_that_owner_and_the_next(
    new_node: NewNode,
) -> None:
    """As one that log and ledger know of, and the bucket does not."""
    first = new_node("a")
    wait_until(lambda: own_all(first), "the only node has all")
    first.holder.in_the_way = {3: 1_000}
    wait_until(lambda: first.holder.held.get(3, 0) > 1_000, "it has a higher one")
    assert first.holder.lost == [3]
    before = dict(first.holder.held)
    first.membership.stop()
    second = new_node("b")
    wait_until(lambda: own_all(second), "the next one has all")
    assert all(epoch > before[own] for own, epoch in second.holder.held.items())


@pytest.mark.slow
def test_records_that_are_lost_are_written_anew_with_higher_epochs(new_node: NewNode) -> None:
    node = new_node("a")
    wait_until(lambda: own_all(node), "the only node has all")
    before = dict(node.holder.held)
    owners = node.membership._records._bucket
    node.connection.call(
        lambda client: client.jetstream().delete_stream(owners._stream), "deleting"
    )
    KeyValue(node.connection, owners._bucket)

    def has_higher() -> bool:
        held = node.holder.held
        return all(held.get(own, 0) > epoch for own, epoch in before.items())

    wait_until(has_higher, "it has all with higher epochs")
    wait_until(lambda: node.membership.owner_of(0) is not None, "and all know it")


@pytest.mark.slow
def test_one_record_that_is_lost_is_written_anew_with_a_higher_epoch(new_node: NewNode) -> None:
    """As servers of 2.9 may lose one, killed one after the other; the others stay as they are."""
    nodes = [new_node("a"), new_node("b")]
    wait_until(lambda: own_theirs(*nodes), "each has its share")
    owner, other = nodes
    own = next(iter(owner.holder.held))
    before = [dict(node.holder.held) for node in nodes]
    bucket = owner.membership._records._bucket
    subject = bucket._subject(str(own))
    owner.connection.call(
        lambda client: client.jetstream().purge_stream(bucket._stream, subject=subject), "deleting"
    )
    wait_until(lambda: owner.holder.held.get(own, 0) > before[0][own], "it has a higher epoch")
    wait_until(lambda: other.membership.owner_of(own) is not None, "and the other one knows it")
    assert owner.membership.fault is None
    assert owner.holder.held | {own: 0} == before[0] | {own: 0}
    assert other.holder.held == before[1]
