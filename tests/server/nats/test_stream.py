"""Streams of JetStream, on one server and on three."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from nats.js import api

from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.errors import FullError, NATSError, UnreachableError
from gradwatch_server.nats.jetstream import JetStreamStream
from gradwatch_server.nats.key_value import KeyValue
from gradwatch_server.nats.stream import LastSequenceError, MissingError, Stored
from tests.support.nats_servers import NATSServers
from tests.support.waiting import wait_until

_NUMBERS: Final = itertools.count(1)


def made(
    connection: Connection, replicas: int = 1, max_bytes: int | None = None
) -> JetStreamStream:
    """Make a stream whose subjects begin with its name."""
    name = f"STREAM_{next(_NUMBERS)}"
    stream = JetStreamStream(connection, name)
    stream.ensure([f"{name}.>"], replicas=replicas, max_bytes=max_bytes)
    return stream


@pytest.fixture
def stream(nats_connection: Connection) -> JetStreamStream:
    return made(nats_connection)


class Chain:
    """Appends to one subject, each message after the one before."""

    def __init__(self, stream: JetStreamStream, subject: str = "x") -> None:
        self.stream = stream
        self.subject = f"{stream.name}.{subject}"
        self.sequences: list[int] = []

    def add(self, payload: bytes, name: str = "") -> int:
        after = self.sequences[-1] if self.sequences else 0
        self.sequences.append(
            self.stream.append(
                self.subject,
                payload,
                message_id=name or f"{self.subject}-{after}",
                after=after,
                epoch=0,
                headers={"Name": name},
            )
        )
        return self.sequences[-1]

    def read(self, after: int = 0, *, headers_only: bool = False) -> list[Stored]:
        return list(self.stream.read(self.subject, after, headers_only=headers_only))


def test_messages_are_read_back_subject_by_subject(stream: JetStreamStream) -> None:
    """Whole or their headers only, from any of them on, more than a page of them."""
    chains = Chain(stream, "x"), Chain(stream, "y")
    for number in range(40):
        for chain in chains:
            chain.add(bytes([number]) * 10, f"{chain.subject} {number}")
    for chain in chains:
        found = chain.read()
        assert [own.sequence for own in found] == chain.sequences
        assert [own.payload for own in found] == [bytes([number]) * 10 for number in range(40)]
        assert found[7].headers["Name"] == f"{chain.subject} 7"
        heads = chain.read(chain.sequences[3], headers_only=True)
        assert [own.sequence for own in heads] == chain.sequences[4:]
        assert {(own.payload, own.num_bytes) for own in heads} == {(b"", 10)}
        assert chain.read(chain.sequences[-1]) == []
    assert list(stream.read(f"{stream.name}.z")) == []

    own = stream.get(chains[1].sequences[5])
    assert own is not None
    assert (own.payload, own.num_bytes) == (bytes([5]) * 10, 10)
    assert stream.get(1_000) is None


def test_the_same_message_is_written_once(stream: JetStreamStream) -> None:
    """Whoever asks again is told where it is, also after others; another one is refused."""
    chain = Chain(stream)
    first = chain.add(b"a", "one")
    again = {"message_id": "one", "after": 0, "epoch": 0, "headers": {}}
    assert stream.append(chain.subject, b"a", **again) == first  # type: ignore[arg-type]
    second = chain.add(b"b", "two")
    assert stream.append(chain.subject, b"a", **again) == first  # type: ignore[arg-type]
    for after in (0, first):
        with pytest.raises(LastSequenceError, match="somebody else wrote"):
            stream.append(chain.subject, b"c", message_id="three", after=after, epoch=0, headers={})

    assert [own.sequence for own in chain.read()] == [first, second]


def test_a_new_owner_is_in_whatever_comes_before_it(stream: JetStreamStream) -> None:
    """Owners of lower epochs append no more, and cannot come back."""
    subject = f"{stream.name}.x"

    def append(after: int, epoch: int) -> int:
        name = f"{after} {epoch}"
        return stream.append(subject, b"", message_id=name, after=after, epoch=epoch, headers={})

    sequences = [stream.take_over(subject, 1, {})]
    sequences.append(append(sequences[-1], 1))
    sequences.append(stream.take_over(subject, 5, {}))
    with pytest.raises(LastSequenceError):
        append(sequences[1], 1)
    stream.take_over(subject, 3, {})
    sequences.append(append(sequences[-1], 5))
    sequences.append(stream.take_over(subject, 5, {}))

    found = list(stream.read(subject))
    assert [own.sequence for own in found] == sequences
    assert [own.epoch for own in found] == [1, 1, 5, 5, 5]
    rest = stream.read(subject, sequences[2])
    assert [own.sequence for own in rest] == sequences[3:]


def test_purging_keeps_the_message_that_is_named(stream: JetStreamStream) -> None:
    """And all after it; other subjects stay."""
    chain, other = Chain(stream, "x"), Chain(stream, "y")
    for number in range(5):
        chain.add(bytes(100), str(number))
        other.add(bytes(100))
    before = stream.used_bytes()
    stream.purge(f"{stream.name}.nothing", other.sequences[-1])
    stream.purge(chain.subject, chain.sequences[0])
    assert [own.sequence for own in chain.read()] == chain.sequences
    stream.purge(chain.subject, chain.sequences[3])

    assert [own.sequence for own in chain.read()] == chain.sequences[3:]
    assert [own.sequence for own in other.read()] == other.sequences
    assert stream.get(chain.sequences[2]) is None
    assert stream.used_bytes() < before
    chain.add(b"", "next")
    with pytest.raises(LastSequenceError):  # although what it names is gone
        stream.append(
            chain.subject, b"", message_id="late", after=chain.sequences[1], epoch=0, headers={}
        )
    assert [own.sequence for own in chain.read()] == chain.sequences[3:]


def test_a_message_that_is_missing_is_told(
    stream: JetStreamStream, nats_connection: Connection
) -> None:
    """Rather than that what comes after it is taken for nobody's."""
    chain = Chain(stream)
    for number in range(3):
        chain.add(b"", str(number))
    lost = chain.sequences[1]
    nats_connection.call(
        lambda client: client.jetstream().delete_msg(stream.name, lost), "delete one"
    )
    with pytest.raises(MissingError, match=f"the message {lost} before message"):
        chain.read()


def test_a_full_stream_says_so_until_there_is_room(nats_connection: Connection) -> None:
    """What is refused is written later, if it is asked for again."""
    chain = Chain(made(nats_connection, max_bytes=20_000))
    for number in range(2):
        chain.add(bytes(9_000), str(number))
    with pytest.raises(FullError, match="the stream is full") as caught:
        chain.add(bytes(9_000), "2")
    assert caught.value.is_stream
    chain.stream.purge(chain.subject, chain.sequences[1])
    chain.add(bytes(9_000), "2")

    assert [own.headers["Name"] for own in chain.read()] == ["1", "2"]


def test_a_stream_of_another_shape_is_refused(nats_connection: Connection) -> None:
    """In one line, and it is left as it is."""
    stream = made(nats_connection)
    subjects = [f"{stream.name}.>"]
    stream.ensure(subjects, replicas=1, max_bytes=None)
    with pytest.raises(NATSError, match="made with num_replicas = 1, and 3 is") as caught:
        stream.ensure(subjects, replicas=3, max_bytes=10_000)
    assert "\n" not in str(caught.value)
    with pytest.raises(NATSError, match=r"made with subjects = \['STREAM_"):
        stream.ensure([f"{stream.name}.x"], replicas=1, max_bytes=None)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (api.StreamConfig(retention=api.RetentionPolicy.WORK_QUEUE), "retention = workqueue, and"),
        (api.StreamConfig(discard=api.DiscardPolicy.OLD), "discard = old, and new is"),
        (api.StreamConfig(discard=api.DiscardPolicy.NEW, max_age=60.0), "max_age = 60.0, and 0 is"),
    ],
)
def test_the_stream_of_another_program_is_refused(
    nats_connection: Connection, other: api.StreamConfig, says: str
) -> None:
    """It would delete what was acknowledged."""
    name = f"STREAM_{next(_NUMBERS)}"
    subjects = [f"{name}.>"]
    config = replace(other, name=name, subjects=subjects)
    nats_connection.call(lambda client: client.jetstream().add_stream(config), "make it")
    with pytest.raises(NATSError, match=says):
        JetStreamStream(nats_connection, name).ensure(subjects, replicas=1, max_bytes=None)


def is_written(chain: Chain) -> bool:
    """Tell whether there is room for one more message."""
    try:
        chain.add(bytes(90_000), "more")
    except (FullError, UnreachableError):
        return False
    return True


ACCOUNT: Final = """
accounts: {A: {jetstream: {max_file: 300KB, max_mem: 0}, users: [{user: ada, password: b}]}}
"""


@pytest.mark.parametrize(
    ("num_servers", "what"),
    [
        (1, "servers have"),
        (1, "account has"),
        pytest.param(3, "account has", marks=pytest.mark.slow),
    ],
)
def test_a_full_jetstream_says_what_is_full(tmp_path: Path, num_servers: int, what: str) -> None:
    """A message and a key are refused alike, and none is half there."""
    is_account, says = what.startswith("account"), f"JetStream is full: its {what} no room left"
    extra, max_file = (ACCOUNT, "4GB") if is_account else ("", "300KB")
    with NATSServers(tmp_path, num_servers, extra, max_file=max_file) as servers:
        urls = [url.replace("//", "//ada:b@") if is_account else url for url in servers.urls]
        with Connection(urls) as connection:
            chain = Chain(made(connection, num_servers))
            bucket = KeyValue(connection, "keys", num_servers)

            def fill() -> None:
                for number in range(10):
                    chain.add(bytes(90_000), str(number))

            with pytest.raises(FullError, match=says) as caught:
                fill()
            assert not caught.value.is_stream
            with pytest.raises(FullError, match=says):
                bucket.create("key", bytes(90_000))
            assert [own.sequence for own in chain.read()] == chain.sequences

            for server in servers.servers if is_account else ():
                server.change("300KB", "3GB")
            if is_account:
                wait_until(lambda: is_written(chain), "there is room")
                assert [own.sequence for own in chain.read()] == chain.sequences


def test_how_much_a_stream_may_have_can_be_changed(nats_connection: Connection) -> None:
    """What is there stays; one that was full goes on."""
    stream = made(nats_connection, max_bytes=20_000)
    chain, subjects = Chain(stream), [f"{stream.name}.>"]
    chain.add(bytes(9_000))
    stream.ensure(subjects, replicas=1, max_bytes=10_000)
    with pytest.raises(FullError):
        chain.add(bytes(9_000))
    stream.ensure(subjects, replicas=1, max_bytes=None)
    for _ in range(2):
        chain.add(bytes(9_000))
    assert len(chain.read()) == 3
    with pytest.raises(FullError, match="less is left than is to be reserved"):
        made(nats_connection, max_bytes=1 << 50)


@pytest.fixture
def connections(nats_cluster: NATSServers) -> Iterator[list[Connection]]:
    """Two connections to each of three servers."""
    made = [Connection([url]) for url in nats_cluster.urls * 2]
    yield made
    for connection in made:
        connection.close()


@pytest.mark.slow
def test_of_those_that_append_at_the_same_moment_one_does(
    connections: list[Connection], at_once: Callable[..., list[int | None]]
) -> None:
    """Readers see that one only, though a server may have written all of them."""
    streams = [made(connections[0], replicas=3)]
    streams += [JetStreamStream(own, streams[0].name) for own in connections[1:]]
    subject, sequences = f"{streams[0].name}.x", [0]
    for turn in range(10):

        def append(number: int, name: str = f"{turn}-", after: int = sequences[-1]) -> int | None:
            try:
                return streams[number].append(
                    subject, b"", message_id=f"{name}{number}", after=after, epoch=0, headers={}
                )
            except LastSequenceError:
                return None

        (winner,) = [own for own in at_once(len(streams), append) if own is not None]
        sequences.append(winner)
    for stream in streams:
        assert [own.sequence for own in stream.read(subject)] == sequences[1:]


@pytest.mark.slow
def test_without_a_quorum_nothing_is_told_to_be_written(nats_cluster: NATSServers) -> None:
    """It fails as not reachable, and goes on when a server is back."""
    with Connection(nats_cluster.urls) as connection:
        stream = JetStreamStream(connection, made(connection, replicas=3).name, patience_s=0.5)
        chain = Chain(stream)
        chain.add(b"", "0")
        for server in nats_cluster.servers[1:]:
            server.pause()
        with pytest.raises(UnreachableError, match="append to"):
            chain.add(b"", "1")
        for server in nats_cluster.servers[1:]:
            server.go_on()
        chain.stream = JetStreamStream(connection, stream.name, patience_s=60.0)
        chain.add(b"", "1")

        assert [own.headers["Name"] for own in chain.read()] == ["0", "1"]
