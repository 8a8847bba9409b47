"""The ingest port: what is no message is counted and told once per kind; nothing else happens."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq

from gradwatch_server.errors import GradwatchError
from gradwatch_server.ingest.inbox import BATCH_BYTES, BATCH_MESSAGES
from gradwatch_server.ingest.message import IngestMessage
from gradwatch_server.ingest.socket import Ingest
from gradwatch_wire import Ack, Bye, Envelope, Event, Refuse, decode, encode
from gradwatch_wire.limits import MAX_RECORD_BYTES
from tests.support.ports import has_ipv6
from tests.support.waiting import wait_until

SESSION = b"s" * 16
GOOD = encode(Envelope(session=SESSION, seq=1, low=1, record=Bye()))


@pytest.fixture
def ingest() -> Iterator[Ingest]:
    ingest = Ingest("tcp://127.0.0.1:0")
    yield ingest
    ingest.close()


def received(ingest: Ingest, count: int) -> list[IngestMessage]:
    """Receive so many messages that can be read."""
    messages: list[IngestMessage] = []

    def all_came() -> bool:
        messages.extend(ingest.receive(50))
        return len(messages) >= count

    wait_until(all_came, f"{count} messages")
    return messages


GARBAGE = {
    "nothing": [b""],
    "two frames": [b"\x01", GOOD],
    "three frames": [GOOD, b"", b""],
    "a version alone": [b"\x01"],
    "random": [b"\x01" + os.urandom(3_000)],
    "not an array": [b"\x01\x80"],
    "a kind that is none": [b"\x01" + msgpack.packb([99, SESSION, 1, 1, 1, {}])],
    "a short session": [b"\x01" + msgpack.packb([8, b"s", 1, 1, 1, {}])],
    "a body that is no map": [b"\x01" + msgpack.packb([8, SESSION, 1, 1, 1, 5])],
    "a bomb of arrays": [b"\x01" + b"\xdc\xff\xff" * 1_000],
}


@pytest.mark.parametrize("frames", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_counted_and_the_next_message_is_read(
    ingest: Ingest,
    dealer: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    frames: list[bytes],
) -> None:
    peer = dealer()
    for _ in range(3):
        peer.send_multipart(frames)
    peer.send(GOOD)
    (message,) = received(ingest, 1)

    assert message.envelope.record == Bye()
    assert ingest.refused == {"malformed": 3}
    (record,) = caplog.records
    assert (record.levelno, "\n" in record.getMessage()) == (logging.WARNING, False)


def test_each_kind_of_refusal_is_told_once(
    ingest: Ingest, dealer: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A client of another version is not lost among the garbage of a port scanner."""
    peer = dealer()
    for _ in range(2):
        peer.send(b"\x01" + b"junk")
        peer.send(b"\x02" + GOOD)
    peer.send(GOOD)
    received(ingest, 1)
    ingest.refuse("run name", "x\x1b[31m\n")
    ingest.refuse("run name", "y")

    assert ingest.refused == {"malformed": 2, "version": 2, "run name": 2}
    assert [record.args[0] for record in caplog.records] == ["malformed", "version", "run name"]  # type: ignore[index]  # a tuple
    assert "expected protocol version 1, got version 2" in caplog.records[1].getMessage()
    assert caplog.records[2].getMessage().isprintable()


def test_a_frame_that_is_too_long_never_comes_in(
    ingest: Ingest, dealer: Callable[..., Any]
) -> None:
    """ZeroMQ drops that peer's connection; others, and the peer itself later, go on."""
    peer, other = dealer(), dealer()
    peer.send(b"\x01" + bytes(MAX_RECORD_BYTES))
    other.send(GOOD)
    (message,) = received(ingest, 1)
    assert message.raw == GOOD

    def send_again() -> list[IngestMessage]:
        peer.send(GOOD)
        return list(ingest.receive(100))

    wait_until(send_again, "a message over the peer's next connection")
    assert not ingest.refused


def test_bytes_that_are_not_zeromq_are_harmless(ingest: Ingest, dealer: Callable[..., Any]) -> None:
    """HTTP, noise and silence on the port; a real peer is served meanwhile."""
    host, _, port = ingest.endpoint.removeprefix("tcp://").rpartition(":")
    raw = [socket.create_connection((host, int(port))) for _ in range(3)]
    raw[0].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
    raw[1].sendall(os.urandom(50_000))
    dealer().send(GOOD)

    assert len(received(ingest, 1)) == 1
    # ZeroMQ reads noise as messages of its oldest version, so that some of it may come in.
    assert set(ingest.refused) <= {"malformed", "version", "throttled"}
    for one in raw:
        one.close()


@pytest.mark.parametrize("kind", [zmq.REQ, zmq.ROUTER], ids=["REQ", "ROUTER"])
def test_sockets_of_other_types_do_no_harm(
    ingest: Ingest, dealer: Callable[..., Any], kind: int
) -> None:
    peer = dealer(kind=kind)
    if kind == zmq.REQ:
        peer.send(GOOD)
    dealer().send(GOOD)
    (message,) = received(ingest, 1)

    assert message.raw == GOOD
    assert set(ingest.refused) <= {"malformed"}


def test_a_peer_is_heard_once_nothing_of_it_waits(
    ingest: Ingest, dealer: Callable[..., Any]
) -> None:
    dealer().send(GOOD)

    def has_come() -> bool:
        ingest.listen(50)
        return ingest.has_waiting

    wait_until(has_come, "the message")
    (peer,) = ingest._queue._waiting
    assert not ingest.is_heard(peer)
    received(ingest, 1)
    assert ingest.is_heard(peer)


def test_a_batch_is_bounded(ingest: Ingest, dealer: Callable[..., Any]) -> None:
    peers = [dealer() for _ in range(8)]  # the queues of fewer would not hold a whole batch
    for peer in peers:
        peer.set_hwm(0)

    def is_full() -> bool:
        for number in range(2 * BATCH_MESSAGES):  # without a bound all of them come at once
            peers[number % len(peers)].send(GOOD)
        size = len(list(ingest.receive(50)))
        assert size <= BATCH_MESSAGES
        return size == BATCH_MESSAGES

    wait_until(is_full, "a batch that is full")


def test_a_batch_is_bounded_in_bytes(ingest: Ingest, dealer: Callable[..., Any]) -> None:
    """Long records make short batches: a batch must not fill the memory."""
    large = Event(name="x", step=1, data={f"k{i}": "v" * 4_000 for i in range(32)})
    raw = encode(Envelope(session=SESSION, seq=1, low=1, record=large))
    peer = dealer()
    peer.set_hwm(0)
    one = len(raw)

    def is_full() -> bool:
        for _ in range(2 * BATCH_BYTES // one):
            peer.send(raw)
        size = one * len(list(ingest.receive(50)))
        assert size <= BATCH_BYTES + one
        return size > BATCH_BYTES

    wait_until(is_full, "a batch that is full")


def test_an_answer_goes_to_the_one_who_asked(ingest: Ingest, dealer: Callable[..., Any]) -> None:
    peers = [dealer() for _ in range(3)]
    for number, peer in enumerate(peers):
        own = Envelope(session=bytes([number]) * 16, seq=1, low=1, record=Bye())
        peer.send(encode(own))
    messages = received(ingest, 3)
    for message in messages:
        ack = Ack(boot_id=bytes(16), acked=message.envelope.session[0])
        assert ingest.reply(message.peer, message.envelope.session, ack)
    for number, peer in enumerate(peers):
        assert peer.poll(5_000)
        answer = encode(
            Envelope(session=bytes([number]) * 16, record=Ack(boot_id=bytes(16), acked=number))
        )
        assert peer.recv() == answer

    peers[0].close()
    gone = next(m.peer for m in messages if m.envelope.session[0] == 0)
    wait_until(lambda: not ingest.reply(gone, SESSION, Bye()), "an answer that goes nowhere")


@pytest.mark.slow
def test_a_peer_that_does_not_read_is_not_waited_for(
    ingest: Ingest, dealer: Callable[..., Any]
) -> None:
    peer = dealer()
    peer.set_hwm(1)
    peer.send(GOOD)
    (message,) = received(ingest, 1)
    alert = Event(name="x", step=1, data={"k": "v" * 4_000})
    answers = [ingest.reply(message.peer, SESSION, alert) for _ in range(20_000)]

    assert answers[0]
    assert not answers[-1]


def test_a_taken_port_is_named(ingest: Ingest) -> None:
    with pytest.raises(GradwatchError) as caught:
        Ingest(ingest.endpoint)

    assert str(caught.value).startswith(
        f"cannot bind the ingest endpoint {ingest.endpoint}: Address already in use"
    )
    assert "--ingest" in str(caught.value)


@pytest.mark.parametrize(
    "endpoint", ["tcp://no.such.host.invalid:5555", "tcp://192.0.2.1:5555", "ipc:///no/such/dir/x"]
)
def test_an_address_that_cannot_be_had_is_named(endpoint: str) -> None:
    with pytest.raises(GradwatchError, match=r"^cannot bind the ingest endpoint [^\n]*$"):
        Ingest(endpoint)


@pytest.mark.parametrize("endpoint", ["tcp://[::1]:0", "ipc://{folder}/socket"])
def test_other_local_transports_work(endpoint: str, tmp_path: Path) -> None:
    """IPv6, and a socket file."""
    if "::1" in endpoint and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    ingest = Ingest(endpoint.format(folder=tmp_path))
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.linger = 0
        peer.ipv6 = True
        peer.connect(ingest.endpoint)
        peer.send(GOOD)
        try:
            assert len(received(ingest, 1)) == 1
        finally:
            ingest.close()


def test_who_sends_a_malformed_message_is_told_once_a_second(
    ingest: Ingest, dealer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [100.0]
    monkeypatch.setattr("gradwatch_server.ingest.socket.time.monotonic", lambda: now_s[0])
    peer, other = dealer(), dealer()
    for _ in range(3):
        peer.send(b"\x01" + msgpack.packb([8, SESSION, 1, 1, 1, 5]))
    peer.send(GOOD)
    received(ingest, 1)
    other.send(b"\x02" + b"anything")
    other.send(GOOD)
    received(ingest, 1)

    told = decode(peer.recv())
    assert told.session == SESSION
    assert told.record == Refuse(reason="expected a map, got int 5, at BYE")
    assert not peer.poll(100)
    told = decode(other.recv())
    assert told.session == bytes(16)
    reason = "expected protocol version 1, got version 2, at message.version"
    assert told.record == Refuse(reason=reason)

    now_s[0] += 1.0
    peer.send(b"\x01" + b"junk")
    peer.send(GOOD)
    received(ingest, 1)
    assert decode(peer.recv()).session == bytes(16)


def test_nothing_is_waited_for_while_a_message_has_its_turn(
    ingest: Ingest, dealer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a record that came while the engine did something else would wait for the next one."""
    dealer().send(GOOD)

    def has_come() -> bool:
        ingest.listen(50)
        return ingest.has_waiting

    wait_until(has_come, "the message")
    waits: list[int] = []
    monkeypatch.setattr(ingest, "_wait", waits.append)
    ingest.listen(60_000)

    assert waits == [0]
