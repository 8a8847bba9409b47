"""The connection to NATS, with real servers that are killed, stopped and paused."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from nats import errors

from gradwatch_server.errors import GradwatchError
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.errors import (
    NATSError,
    NoRespondersError,
    UnreachableError,
    is_refusal,
    says_more,
)
from gradwatch_server.nats.message import Message
from tests.support.nats_servers import NATSServers
from tests.support.ports import ReservedPort
from tests.support.waiting import wait_until


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NATSServers]:
    """A server that a test may end."""
    with NATSServers(tmp_path) as servers:
        yield servers


def test_messages_come_in_order_with_what_was_sent(nats_connection: Connection) -> None:
    """Payload and headers, from any thread."""
    found: list[Message] = []
    subscription = nats_connection.subscribe("order.*", found.append)
    nats_connection.flush()

    def send() -> None:
        for number in range(200):
            nats_connection.publish("order.x", bytes([number]), {"Kind": "é"}, "back")

    sender = threading.Thread(target=send)
    sender.start()
    sender.join()
    nats_connection.flush()
    wait_until(lambda: len(found) == 200, "all messages")

    assert [message.payload for message in found] == [bytes([number]) for number in range(200)]
    assert found[0] == Message("order.x", b"\0", {"Kind": "é"}, "back")
    nats_connection.unsubscribe(subscription)
    nats_connection.unsubscribe(subscription)
    nats_connection.publish("order.x")
    nats_connection.flush()
    assert len(found) == 200


def test_a_request_is_answered_or_says_why_not(nats_connection: Connection) -> None:
    """By who listens; nobody, and silence, are told apart."""

    def answer(message: Message) -> None:
        nats_connection.publish(message.reply, message.payload.upper())

    subscriptions = [
        nats_connection.subscribe("ask.loud", answer),
        nats_connection.subscribe("ask.deaf", lambda _: None),
    ]
    assert nats_connection.request("ask.loud", b"who").payload == b"WHO"
    with pytest.raises(NoRespondersError, match=r"ask\.nobody"):
        nats_connection.request("ask.nobody")
    with pytest.raises(UnreachableError, match="no answer in time") as caught:
        nats_connection.request("ask.deaf", timeout_s=0.05)
    assert not isinstance(caught.value, NoRespondersError)
    for subscription in subscriptions:
        nats_connection.unsubscribe(subscription)


def test_a_callback_that_fails_costs_one_message(
    nats_connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told in the log, and the next message comes."""
    found: list[bytes] = []

    def take(message: Message) -> None:
        found.append(message.payload)
        if message.payload == b"1":
            raise RuntimeError

    subscription = nats_connection.subscribe("fails", take)
    for payload in (b"1", b"2"):
        nats_connection.publish("fails", payload)
    nats_connection.flush()
    wait_until(lambda: len(found) == 2, "both messages")

    assert "a message on fails could not be taken" in caplog.text
    nats_connection.unsubscribe(subscription)


def test_what_no_server_takes_is_refused_at_once(nats_connection: Connection) -> None:
    """In the project's own errors."""
    with pytest.raises(NATSError, match="at most 1048576"):
        nats_connection.publish("large", bytes(1_048_577))
    with pytest.raises(NATSError, match="subscription to a b"):
        nats_connection.subscribe("a b", lambda _: None)


def test_nobody_there_is_one_line_without_credentials() -> None:
    """It names the servers, and what was wrong."""
    port = ReservedPort()
    address = f"127.0.0.1:{port.number}"
    with pytest.raises(GradwatchError) as caught:
        Connection([f"nats://ada:s3cret@{address}", address], patience_s=0.1)
    text = str(caught.value)

    assert text == (
        f"no NATS server lets us in at nats://{address}, nats://{address}: connection refused"
    )
    port.close()


@pytest.mark.parametrize(
    "address", ["http://h:1", "nats://", "nats://ada:s3cret@h:x", "nats://h/a"]
)
def test_no_address_is_one_line_without_credentials(address: str) -> None:
    with pytest.raises(GradwatchError, match="not the address of a NATS server") as caught:
        Connection([address])
    assert "s3cret" not in str(caught.value)


def test_credentials_of_an_address_are_used(tmp_path: Path) -> None:
    """Also where they have to be escaped; without them nobody is let in."""
    extra = 'authorization: {user: ada, password: "p@ss"}'
    with NATSServers(tmp_path, extra=extra) as servers:
        (url,) = servers.urls
        with Connection([url.replace("//", "//ada:p%40ss@")]) as connection:
            connection.flush()
        with pytest.raises(GradwatchError, match="does not take the user and password") as caught:
            Connection([url.replace("//", "//ada:wrong@")], patience_s=0.5)
        assert "Authorization Violation" in str(caught.value)
        assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("says", ["Authorization Violation", "User Authentication Expired"])
@pytest.mark.parametrize(
    ("later", "stands"),
    [
        (ConnectionResetError("reset"), True),
        (TimeoutError(), True),
        (ConnectionRefusedError("refused"), False),
        (errors.Error("nats: 'Maximum Connections Exceeded'"), False),
    ],
)
def test_how_a_server_hangs_up_says_less_than_why(
    says: str, later: Exception, stands: bool
) -> None:
    before = errors.Error(f"nats: '{says}'")
    assert is_refusal(before)
    assert says_more(later, before) is not stands
    assert says_more(before, later)


@pytest.mark.slow
def test_a_password_that_is_changed_meanwhile_is_told(tmp_path: Path) -> None:
    """Also once the server has hung up; where it is taken again, the connection is back."""
    with NATSServers(tmp_path, extra="authorization: {user: ada, password: one}") as servers:
        (server,), (url,) = servers.servers, servers.urls
        with Connection([url.replace("//", "//ada:one@")]) as connection:
            assert connection.fault is None
            server.change("password: one", "password: two")
            wait_until(lambda: "user and password" in (connection.fault or ""), "what is wrong")
            assert "one" not in (connection.fault or "").split()
            server.change("password: two", "password: one")
            wait_until(lambda: connection.is_connected, "it is let in again")
            assert connection.fault is None


@pytest.mark.slow
def test_it_comes_back_with_its_subscriptions(
    own_server: NATSServers, caplog: pytest.LogCaptureFixture
) -> None:
    """Each change is told once, in the log too; nothing is sent or asked meanwhile."""
    (server,) = own_server.servers
    found: list[Message] = []
    changes: list[bool] = []
    with Connection(own_server.urls) as connection, caplog.at_level(logging.WARNING):
        connection.on_change(changes.append)
        connection.subscribe("back", found.append)
        connection.flush()
        server.kill()
        wait_until(lambda: changes == [False], "it is cut off")
        with pytest.raises(UnreachableError, match="no NATS server is connected"):
            connection.publish("back")
        with pytest.raises(UnreachableError, match="no NATS server is connected"):
            connection.request("back")
        server.start()
        wait_until(lambda: changes == [False, True], "it is back")
        connection.publish("back")
        wait_until(lambda: len(found) == 1, "the message")
        lines = [record.message for record in caplog.records if "nats" in record.name]

    assert len(lines) == 2
    assert lines[0].startswith(f"NATS: cut off from {server.url} (")
    assert lines[1] == f"NATS: connected again, to {server.url.removeprefix('nats://')}"
    with pytest.raises(UnreachableError, match="closed"):
        connection.flush()


@pytest.mark.slow
def test_a_server_that_says_nothing_is_left(own_server: NATSServers) -> None:
    """Although its sockets stay open; and it is found again."""
    (server,) = own_server.servers
    changes: list[bool] = []
    with Connection(own_server.urls) as connection:
        connection.on_change(changes.append)
        server.pause()
        with pytest.raises(UnreachableError, match="no answer in time"):
            connection.flush(0.1)
        wait_until(lambda: changes == [False], "it is cut off")
        server.go_on()
        wait_until(lambda: changes == [False, True], "it is back")
        connection.flush()


@pytest.mark.slow
def test_a_client_that_a_server_ended_for_good_is_replaced() -> None:
    """With its subscriptions: the library itself gives up on some errors."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()
        seen: list[bytes] = []

        def serve() -> None:
            for number in range(2):
                client, _ = listener.accept()
                with client, client.makefile("rb") as lines:
                    client.sendall(b'INFO {"max_payload": 1024, "headers": true}\r\n')
                    for line in lines:
                        seen.append(line.split()[0])
                        if line.startswith(b"PING"):
                            client.sendall(b"PONG\r\n")
                        if line.startswith(b"SUB") and number == 0:
                            client.sendall(b"-ERR 'Account Authentication Expired'\r\n")
                            break
                        if line.startswith(b"SUB"):
                            ended.set()

        thread = threading.Thread(target=serve)
        thread.start()
        with Connection([f"127.0.0.1:{listener.getsockname()[1]}"]) as connection:
            connection.subscribe("x", lambda _: None)
            assert ended.wait(60)
        thread.join()

    assert seen.count(b"CONNECT") == 2
