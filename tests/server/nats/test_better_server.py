"""Going on with another server, with three of which two do not reach each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.jetstream import JetStreamStream
from gradwatch_server.nats.message import Message
from gradwatch_server.nats.reach import BEAT_S, Leader, Wanted, beat_of, leader_of
from tests.support.divided_servers import DividedServers
from tests.support.nats_servers import NATSServers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

WANTED = Wanted("reach.beats.*", ("REACHED",))
B = frozenset({"node b"})


@pytest.fixture
def divided(tmp_path: Path) -> Iterator[DividedServers]:
    with DividedServers(tmp_path) as servers:
        yield servers


@contextmanager
def beating(connection: Connection, node: str) -> Iterator[None]:
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_S):
            connection.publish(f"reach.beats.{node}")

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_it_goes_where_more_is_reached(divided: DividedServers) -> None:
    """Not before the cut; then to the third one, and no message is lost or comes twice.

    Somebody else is at the same server as it is itself: the second one is no better.
    """
    one, _, three = (urlsplit(url).netloc for url in divided.urls)
    found: list[Message] = []
    changes: list[bool] = []
    with (
        Connection(divided.urls[:1]) as own,
        Connection(divided.urls[:1]) as near,
        Connection(divided.urls[1:2]) as other,
    ):
        own.on_change(changes.append)
        own.subscribe("reach.told", found.append)
        own.flush()
        with beating(near, "a"), beating(other, "b"):
            assert own.move(WANTED, B) is None
            divided.cut()
            moved = wait_until(lambda: own.move(WANTED, B), "a better server")
            assert moved == (one, three)
            assert changes == [True]
            assert own.move(WANTED, B) is None
        own.flush()
        for number in range(9):
            other.publish("reach.told", bytes([number]))
        wait_until(lambda: len(found) == 9, "all messages")
        other.publish("reach.told", b"last")
        wait_until(lambda: found[-1].payload == b"last", "the last message")
    assert [own.payload for own in found[:-1]] == [bytes([number]) for number in range(9)]


def test_a_leader_hands_over_to_one_whom_all_hear(divided: DividedServers) -> None:
    """Wherever it is at first: it ends at the third one, and a call finds it there."""
    with Connection(divided.urls) as anywhere:
        JetStreamStream(anywhere, "REACHED").ensure(["reached.*"], replicas=3, max_bytes=None)
    with Connection(divided.urls[2:]) as own:

        def leader() -> Leader | None:
            return own.ask_leaders(["REACHED"]).get("REACHED")

        wait_until(lambda: (now := leader()) and not now.silent, "a leader that hears all")
        assert own.find_alive(frozenset({"n0", "n2", "gone"})) == {"n0", "n2"}
        divided.cut()

        def is_third() -> bool:
            now = leader()
            if now is not None and now.silent:
                own.hand_over({"REACHED": now})
            return now is not None and now.name == "n2"

        wait_until(is_third, "the third one leads")
        stale = Leader("n0", frozenset({"n1"}))
        assert not own.hand_over({"REACHED": stale})  # n2 leads by now, and hears all


def test_nobody_moves_for_what_is_gone(nats_cluster: NATSServers) -> None:
    """A node that is dead, and a stream without a quorum, are reached from nowhere."""
    wanted = Wanted("reach.beats.*", ("ALONE",))
    missing = frozenset({beat_of("dead"), leader_of("ALONE")})
    with Connection(nats_cluster.urls) as anywhere:
        JetStreamStream(anywhere, "ALONE").ensure(["alone.*"], replicas=1, max_bytes=None)
        leaders = wait_until(lambda: anywhere.ask_leaders(["ALONE"]), "its leader")
    (keeper,) = (own for own in nats_cluster.servers if own.name == leaders["ALONE"].name)
    stays = next(own for own in nats_cluster.servers if own is not keeper)
    with Connection([stays.url]) as connection:
        keeper.kill()
        try:
            wait_until(lambda: not connection.ask_leaders(["ALONE"]), "it is gone")
            assert connection.move(wanted, missing) is None
        finally:
            keeper.start()
            nats_cluster.wait_until_ready()
        wait_until(lambda: connection.ask_leaders(["ALONE"]), "it is back")
