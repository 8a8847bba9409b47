"""The ingest port with keys: without one nothing is taken in, and the others notice nothing."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from gradwatch_server.ingest.message import IngestMessage
from gradwatch_server.ingest.socket import ENDPOINT, Ingest, ZapAuthenticator, require_curve
from gradwatch_server.keys import Client, add_client, make_keys, read_keys
from gradwatch_wire import Ack, Bye, Envelope, encode
from gradwatch_wire.keyfile import ClientKey, read_client_key

SESSION = b"s" * 16
GOOD = encode(Envelope(session=SESSION, seq=1, low=1, record=Bye()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys")
    add_client(tmp_path / "keys", "other", ["x-*"])
    return tmp_path / "keys"


@pytest.fixture
def key(folder: Path) -> ClientKey:
    return read_client_key(folder / "client.key")


@pytest.fixture
def ingest(folder: Path) -> Iterator[Ingest]:
    ingest = Ingest("tcp://127.0.0.1:0", read_keys(folder))
    yield ingest
    ingest.close()


def received(ingest: Ingest, count: int, timeout_s: float = 10) -> list[IngestMessage]:
    """Receive so many messages, or fewer when the time is over."""
    messages: list[IngestMessage] = []
    deadline = time.monotonic() + timeout_s
    while len(messages) < count and time.monotonic() < deadline:
        messages += ingest.receive(50)
    return messages


def stranger(key: ClientKey) -> ClientKey:
    """Return the key of one who knows the aggregator's public key and is not known to it."""
    public, secret = zmq.curve_keypair()
    return ClientKey(server=key.server, public=public.decode(), secret=secret.decode())


def of_another_server(key: ClientKey) -> ClientKey:
    """Return a known key of one who takes us for another."""
    server = zmq.curve_keypair()[0].decode()
    return ClientKey(server=server, public=key.public, secret=key.secret)


def test_a_known_client_is_read_and_answered_by_name(
    ingest: Ingest, dealer: Callable[..., Any], key: ClientKey, folder: Path
) -> None:
    peers = [dealer(key), dealer(read_client_key(folder / "other.key"))]
    for peer in peers:
        peer.send(GOOD)
    messages = received(ingest, 2)

    clients = {message.client for message in messages}
    assert clients == {Client("client", ("*",)), Client("other", ("x-*",))}
    assert [message.raw for message in messages] == [GOOD] * 2
    assert ingest.reply(messages[0].peer, SESSION, Ack(boot_id=bytes(16), acked=1))


STRANGERS: dict[str, Callable[[ClientKey], ClientKey | None]] = {
    "plain": lambda _key: None,
    "an unknown key": stranger,
    "another server's key": of_another_server,
}


@pytest.mark.slow
@pytest.mark.parametrize("who", STRANGERS)
def test_a_stranger_gets_nothing_in(
    ingest: Ingest, dealer: Callable[..., Any], key: ClientKey, who: str
) -> None:
    before = dealer(STRANGERS[who](key))
    before.send(GOOD)
    assert received(ingest, 1, 0.5) == []
    known = dealer(key)
    known.send(GOOD)
    assert len(received(ingest, 1)) == 1
    after = dealer(STRANGERS[who](key))
    for peer in (before, after):
        with contextlib.suppress(zmq.Again):  # ZeroMQ may have given the connection up
            peer.send(GOOD, zmq.NOBLOCK)
    assert received(ingest, 1, 0.5) == []
    known.send(GOOD)
    assert len(received(ingest, 1)) == 1
    assert ingest.refused == {}


@pytest.mark.slow
def test_an_unknown_key_is_told_once(
    ingest: Ingest, dealer: Callable[..., Any], key: ClientKey, caplog: pytest.LogCaptureFixture
) -> None:
    dealer(stranger(key))
    dealer(stranger(key))
    received(ingest, 1, 1.0)

    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "refused on the ingest port (unknown key, told once): '127.0.0.1'"
    )


def test_noise_and_floods_keep_no_client_out(
    ingest: Ingest, dealer: Callable[..., Any], key: ClientKey
) -> None:
    """Bytes that are no ZeroMQ, half handshakes, and a hundred strangers at once."""
    host, _, port = ingest.endpoint.removeprefix("tcp://").rpartition(":")
    raw = [socket.create_connection((host, int(port))) for _ in range(3)]
    raw[0].sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
    raw[1].sendall(os.urandom(50_000))
    raw[2].sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(15) + b"\x00" + bytes(31))
    for _ in range(100):
        dealer(stranger(key))
    dealer(key).send(GOOD)

    assert len(received(ingest, 1)) == 1
    for one in raw:
        one.close()


@pytest.mark.slow
def test_without_anyone_to_ask_nobody_is_let_in(key: ClientKey, folder: Path) -> None:
    """ZeroMQ's own default lets in every key when nobody answers."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        require_curve(router, read_keys(folder))
        port = router.bind_to_random_port("tcp://127.0.0.1")
        with context.socket(zmq.DEALER) as peer:
            peer.linger = 0
            peer.curve_serverkey = key.server.encode()
            peer.curve_publickey = key.public.encode()
            peer.curve_secretkey = key.secret.encode()
            peer.connect(f"tcp://127.0.0.1:{port}")
            peer.send(GOOD)
            assert not router.poll(500)


REQUESTS = {
    "nothing": [],
    "too short": [b"", b"1.0"],
    "another version": [b"", b"2.0", b"1", b"gradwatch", b"::1", b"", b"CURVE", bytes(32)],
    "no key": [b"", b"1.0", b"1", b"gradwatch", b"::1", b"", b"CURVE"],
    "a short key": [b"", b"1.0", b"1", b"gradwatch", b"::1", b"", b"CURVE", b"x"],
    "no encryption": [b"", b"1.0", b"1", b"gradwatch", b"::1", b"", b"NULL"],
    "a password": [b"", b"1.0", b"1", b"gradwatch", b"::1", b"", b"PLAIN", b"a", b"b"],
    "an odd address": [b"", b"1.0", b"1", b"g", b"\xff\n" * 99, b"", b"CURVE", bytes(32)],
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS.keys())
def test_whatever_is_asked_the_answer_is_no_and_the_next_is_answered(
    key: ClientKey, folder: Path, request_: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    with zmq.Context() as context:
        authenticator = ZapAuthenticator(context, read_keys(folder))
        with context.socket(zmq.DEALER) as peer:
            peer.linger = 0
            peer.connect(ENDPOINT)
            peer.send_multipart(request_ or [b""])
            authenticator.answer()
            while peer.poll(100):
                answer = peer.recv_multipart()
                assert answer[1] == b"1.0"
                assert answer[3:] == [b"400", b"unknown key", b"", b""]
            known = zmq.utils.z85.decode(key.public)
            peer.send_multipart(
                [b"", b"1.0", b"7", b"gradwatch", b"127.0.0.1", b"", b"CURVE", known]
            )
            authenticator.answer()
            assert peer.poll(1_000)
            assert peer.recv_multipart() == [b"", b"1.0", b"7", b"200", b"OK", b"client", b""]
        authenticator.close()
    assert all(record.getMessage().isprintable() for record in caplog.records)
