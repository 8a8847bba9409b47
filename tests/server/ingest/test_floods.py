"""Peers that send on and on: the aggregator lives, others are heard, and the flood is cut off."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from gradwatch_server.ingest.inbox import Floods
from tests.support.aggregator import Aggregator
from tests.support.zmtp import PING, SHORT_PING, message, read_until, shake_hands

pytestmark = pytest.mark.slow


@contextmanager
def raw_connection(service: Aggregator) -> Iterator[socket.socket]:
    """A connection to the ingest port that speaks ZMTP and nothing else."""
    host, port = service.ingest.removeprefix("tcp://").rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=60) as own:
        shake_hands(own, b"DEALER")
        yield own


@pytest.fixture
def connection(service: Aggregator) -> Iterator[socket.socket]:
    with raw_connection(service) as own:
        yield own


@pytest.mark.exhaustive
def test_who_leaves_in_the_middle_of_a_flood_ends_nobody_else(
    service: Aggregator, connection: socket.socket
) -> None:
    """Messages with heartbeats between them, more than are read at once, and then nobody."""
    with suppress(OSError):
        connection.sendall((message(300) * 3 + PING) * 5_000)
    connection.close()
    service.peer(run="beside").attach()
    with raw_connection(service) as other:
        other.sendall(PING)
        read_until(other, b"PONG")

    assert service.answers()
    service.peer(run="after").attach()


def test_the_connection_of_a_stopped_client_ends(connection: socket.socket) -> None:
    """Within the time that its last heartbeat said; the aggregator itself sends none."""
    connection.sendall(SHORT_PING)
    read_until(connection, b"PONG")
    began_s = time.monotonic()
    connection.settimeout(10)
    assert connection.recv(4096) == b""
    assert 0.5 < time.monotonic() - began_s < 5


def test_a_flood_is_cut_off_and_others_are_heard(
    service: Aggregator, connection: socket.socket
) -> None:
    peer = service.peer(run="quiet").attach()
    with pytest.raises(OSError, match=r"reset|pipe"):
        connection.sendall(message(100_000) * 4_000)
    peer.stats(0)
    peer.acked()

    assert 'gradwatch_refused_total{kind="flood"}' in service.get("/metrics").text
    assert service.answers()


def test_a_flood_is_what_comes_in_vain_within_a_second() -> None:
    """A peer that was cut off begins anew."""
    floods = Floods(1_000)
    for at, now_s in enumerate((0.0, 0.5, 2.0, 2.4)):
        floods.count(b"a", 2_400, now_s)
        assert (b"a" in floods) == (at % 2 == 1)
    floods.count(b"b", 2_400, 2.5)
    floods.forget(b"a")

    assert b"a" not in floods
    assert b"b" not in floods
    floods.expire(4.0)
    assert not floods
