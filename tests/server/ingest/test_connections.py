"""Number of connections to the ingest port, over real sockets."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
import zmq

from gradwatch._transport.connection import Connection
from gradwatch_server.budgets import Budgets, BudgetUse
from gradwatch_server.ingest.socket import Ingest
from gradwatch_wire import Bye, Envelope, encode
from gradwatch_wire.session.timing import SILENCE_S
from tests.support.waiting import wait_until

MOST = 16
GOOD = encode(Envelope(session=b"s" * 16, seq=1, low=1, record=Bye()))

CLIENT = """
import sys, time
from gradwatch._transport.connection import Connection

connection = Connection(sys.argv[1], None)
while True:
    connection.send(bytes.fromhex(sys.argv[2]))
    time.sleep(0.2)
"""
"""A client that goes on sending: its messages end the time to live of its heartbeats."""


@pytest.fixture
def ingest() -> Iterator[Ingest]:
    """A port for few connections."""
    made = Ingest("tcp://127.0.0.1:0", budget_use=BudgetUse(Budgets(ingest_connections=MOST)))
    yield made
    made.close()


def address_of(ingest: Ingest) -> tuple[str, int]:
    host, _, port = ingest.endpoint.removeprefix("tcp://").rpartition(":")
    return host, int(port)


def num_open(ingest: Ingest) -> int:
    list(ingest.receive(20))
    return ingest._connections.num_open


def is_closed(ingest: Ingest) -> bool:
    """Tell whether the port takes no new connection."""
    list(ingest.receive(20))
    try:
        socket.create_connection(address_of(ingest), timeout=0.3).close()
    except OSError:
        return True
    return False


def test_connections_are_counted_and_given_back(ingest: Ingest) -> None:
    made = [socket.create_connection(address_of(ingest)) for _ in range(5)]
    wait_until(lambda: num_open(ingest) == 5, "five connections")
    for one in made[:3]:
        one.close()
    wait_until(lambda: num_open(ingest) == 2, "three to be gone")
    assert ingest._use["ingest_connections"].used == 2
    for one in made[3:]:
        one.close()


@pytest.mark.slow
def test_above_the_limit_no_new_one_is_taken_until_there_is_room(
    ingest: Ingest, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that is connected goes on, and it is told in one line (S29)."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.linger = 0
        peer.connect(ingest.endpoint)
        peer.send(GOOD)
        wait_until(lambda: list(ingest.receive(50)), "a message")
        held = []
        with suppress(OSError):
            for _ in range(2 * MOST):
                held.append(socket.create_connection(address_of(ingest), timeout=0.3))
                list(ingest.receive(0))
        wait_until(lambda: is_closed(ingest), "the port to be closed")
        assert ingest._use["ingest_connections"].num_refused >= 1
        peer.send(GOOD)
        wait_until(lambda: list(ingest.receive(50)), "a message from whom was there before")

        for one in held:
            one.close()
        wait_until(lambda: not is_closed(ingest), "the port to be open again")
        with context.socket(zmq.DEALER) as other:
            other.linger = 0
            other.connect(ingest.endpoint)
            other.send(GOOD)
            wait_until(lambda: list(ingest.receive(50)), "a message from a new one")
    assert caplog.text.count("connections to the ingest port") == 1


@pytest.mark.slow
def test_the_connection_of_a_stopped_client_ends(ingest: Ingest) -> None:
    """That of a client which sends nothing but heartbeats stays."""
    quiet = Connection(ingest.endpoint, None)
    command = [sys.executable, "-c", CLIENT, ingest.endpoint, GOOD.hex()]
    with subprocess.Popen(command) as client:
        try:
            wait_until(lambda: num_open(ingest) == 2, "both connections")
            wait_until(lambda: list(ingest.receive(50)), "a message")
            client.send_signal(signal.SIGSTOP)
            wait_until(lambda: num_open(ingest) == 1, "the end of one connection")
            since_s = time.monotonic()
            while time.monotonic() - since_s < 2 * SILENCE_S:
                assert num_open(ingest) == 1
        finally:
            client.kill()
            quiet.close()
