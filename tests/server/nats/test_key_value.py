"""Buckets of keys, on one server and on three."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, Final

import pytest
from nats.aio.client import Client
from nats.js import api

from gradwatch_server.nats import appending
from gradwatch_server.nats.chain import AFTER
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.errors import NATSError
from gradwatch_server.nats.key_value import KeyEntry, KeyValue
from gradwatch_server.nats.shape import create
from tests.support.nats_servers import NATSServers
from tests.support.waiting import wait_until

_NUMBERS: Final = itertools.count(1)


@pytest.fixture
def make_bucket(nats_connection: Connection) -> Callable[..., KeyValue]:
    """Make a bucket of its own: `make_bucket(ttl_s=1)`."""
    return lambda **settings: KeyValue(nats_connection, f"keys-{next(_NUMBERS)}", **settings)


def test_who_knows_the_revision_writes(make_bucket: Callable[..., KeyValue]) -> None:
    """Nobody else; and a revision is greater than any before."""
    bucket = make_bucket()
    first = bucket.create("7", b"a")
    assert first is not None
    assert bucket.create("7", b"b") is None
    second = bucket.update("7", b"c", first)
    assert second is not None
    assert second > first
    assert bucket.update("7", b"d", first) is None
    assert bucket.get("7") == KeyEntry("7", b"c", second)

    assert not bucket.delete("7", first)
    assert bucket.delete("7", second)
    assert bucket.get("7") is None
    assert bucket.update("7", b"e", second) is None
    third = bucket.create("7", b"")
    assert third is not None
    assert third > second
    assert bucket.get("7") == KeyEntry("7", b"", third)


def test_all_keys_are_found(make_bucket: Callable[..., KeyValue]) -> None:
    """Those that were deleted are not, and each is there once."""
    bucket = make_bucket()
    assert bucket.entries() == {}
    revisions = {key: bucket.create(key, key.encode()) for key in ("a", "b.c", "d")}
    assert revisions["a"] is not None
    assert bucket.delete("a", revisions["a"])
    revisions["d"] = bucket.update("d", b"new", revisions["d"] or 0)

    found = bucket.entries()
    assert {key: (own.value, own.revision) for key, own in found.items()} == {
        "b.c": (b"b.c", revisions["b.c"]),
        "d": (b"new", revisions["d"]),
    }


def test_a_key_goes_when_it_is_not_renewed(make_bucket: Callable[..., KeyValue]) -> None:
    """Then who had it cannot renew it, and somebody else may have it."""
    bucket = make_bucket(ttl_s=0.5)
    revision = bucket.create("7", b"a")
    wait_until(lambda: not bucket.entries(), "the key went")

    assert bucket.update("7", b"a", revision or 0) is None
    assert bucket.create("7", b"b") is not None


def test_who_watches_is_told_of_each_write(
    make_bucket: Callable[..., KeyValue], nats_connection: Connection
) -> None:
    """After it happened; not of those that lost."""
    bucket, found = make_bucket(), list[KeyEntry]()
    subscription = bucket.watch(found.append)
    nats_connection.flush()
    first = bucket.create("7", b"a") or 0
    bucket.create("7", b"b")
    second = bucket.update("7", b"c", first) or 0
    bucket.delete("7", second)
    nats_connection.flush()
    wait_until(lambda: len(found) == 3, "three writes")

    assert found[:2] == [KeyEntry("7", b"a", first), KeyEntry("7", b"c", second)]
    assert (found[2].key, found[2].value) == ("7", None)
    nats_connection.unsubscribe(subscription)


def test_keys_are_written_side_by_side(
    make_bucket: Callable[..., KeyValue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by its own revision; nobody waits for another."""
    bucket = make_bucket()
    old = bucket.create("2", b"a") or 0
    bucket.update("2", b"b", old)
    writing = most = 0
    one_by_one = appending.append

    async def append(*arguments: Any) -> int:
        nonlocal writing, most
        writing += 1
        most = max(most, writing)
        try:
            return await one_by_one(*arguments)
        finally:
            writing -= 1

    monkeypatch.setattr("gradwatch_server.nats.key_value.append", append)
    written = bucket.update_all({"1": (b"new", 0), "2": (b"late", old), "3": (b"new", 0)})
    assert written["2"] is None
    assert {key: own.value for key, own in bucket.entries().items()} == {
        "1": b"new",
        "2": b"b",
        "3": b"new",
    }
    assert bucket.update("3", b"newer", written["3"] or 0)
    assert most == 3


def test_a_write_without_an_answer_is_tried_again_soon(
    make_bucket: Callable[..., KeyValue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease is to outlive a message that was lost."""
    bucket = make_bucket(timeout_s=1.5, try_s=0.3)
    publish, left = appending._publish, ["lost", "lost"]

    async def lose_some(*arguments: Any) -> int | None:
        if left:
            left.pop()
            await asyncio.sleep(60.0)
        return await publish(*arguments)

    monkeypatch.setattr(appending, "_publish", lose_some)
    assert bucket.update("1", b"a", 0)
    assert not left


def test_a_bucket_of_another_shape_is_refused(nats_connection: Connection) -> None:
    """In one line that says what it has and what is asked for."""
    KeyValue(nats_connection, "shape", ttl_s=5)
    with pytest.raises(NATSError, match=r"KV_shape was made with max_age = 5\.0, and 0") as caught:
        KeyValue(nats_connection, "shape")
    assert "\n" not in str(caught.value)
    with pytest.raises(NATSError, match="the bucket more"):
        KeyValue(nats_connection, "more", replicas=3)  # there is one server


def test_a_bucket_keeps_keys_as_long_as_the_longest_that_was_asked_for(
    nats_connection: Connection,
) -> None:
    """So nodes may be given another lease one by one."""

    async def ttl_s(client: Client) -> float | None:
        return (await client.jetstream().stream_info("KV_longer")).config.max_age

    for asked_s, has_s in ((5.0, 5.0), (6.0, 6.0), (3.0, 6.0)):
        KeyValue(nats_connection, "longer", ttl_s=asked_s)
        assert nats_connection.call(ttl_s, "asking") == has_s


@pytest.mark.slow
def test_of_those_that_write_at_the_same_moment_one_does(
    nats_cluster: NATSServers, at_once: Callable[..., list[int | None]]
) -> None:
    """Also where three servers keep it, of which 2.9 lets all writes through."""
    connections = [Connection([url]) for url in nats_cluster.urls * 2]
    buckets = [KeyValue(own, "race", replicas=3) for own in connections]
    revision: int | None = None
    for _ in range(10):

        def write(number: int, before: int | None = revision) -> int | None:
            value = str(number).encode()
            if before is None:
                return buckets[number].create("7", value)
            return buckets[number].update("7", value, before)

        answers = at_once(len(buckets), write)
        ((winner, revision),) = [
            (number, own) for number, own in enumerate(answers) if own is not None
        ]
        for bucket in buckets:
            assert bucket.get("7") == KeyEntry("7", str(winner).encode(), revision)
    for connection in connections:
        connection.close()


def test_a_key_whose_messages_were_renumbered_goes_on(nats_connection: Connection) -> None:
    """The newest one names one before it by a number that it has no more."""
    name = f"keys-{next(_NUMBERS)}"
    bucket = KeyValue(nats_connection, name)
    for key in "abc":
        bucket.create(key, b"old")
    nats_connection.publish(f"$KV.{name}.a", b"new", {AFTER: "3"})
    wait_until(lambda: bucket.get("a") == KeyEntry("a", b"new", 4), "the newest one")
    assert bucket.update("a", b"newer", 4) == 5
    assert bucket.entries()["a"] == KeyEntry("a", b"newer", 5)


@pytest.mark.slow
def test_a_server_that_was_killed_has_all_keys_again(nats_cluster: NATSServers) -> None:
    """Also those that were written before one that was written again."""
    with Connection(nats_cluster.urls) as connection:
        name = f"keys-{next(_NUMBERS)}"
        bucket = KeyValue(connection, name, replicas=3)
        revisions = {str(number): bucket.create(str(number), b"a") for number in range(8)}
        for key in "567":
            assert bucket.update(key, b"b", revisions[key] or 0) is not None
        server = nats_cluster.servers[0]
        server.kill()
        server.start()
        nats_cluster.wait_until_ready()

        wait_until(lambda: server.num_messages(f"KV_{name}") == len(revisions), "all keys")


def test_what_another_node_made_in_this_moment_is_found(nats_connection: Connection) -> None:
    """The server refuses the second one, in various words."""
    KeyValue(nats_connection, "moment", ttl_s=5)
    wanted = api.StreamConfig(name="KV_moment", subjects=["$KV.moment.>"], max_age=6)
    other = api.StreamConfig(name="OTHER", subjects=["$KV.moment.>"])

    def make(config: api.StreamConfig) -> api.StreamConfig:
        return nats_connection.call(lambda client: create(client.jetstream(), config), "making")

    assert make(wanted).max_age == 5
    with pytest.raises(NATSError, match="subjects overlap"):
        make(other)
