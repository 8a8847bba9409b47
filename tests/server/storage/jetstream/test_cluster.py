"""The log on three servers that are killed and paused while it is written."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from gradwatch_server.cluster.patience import patiently
from gradwatch_server.core.entries import Entry, Tick
from gradwatch_server.nats.connection import Connection
from gradwatch_server.nats.jetstream import JetStreamStream
from gradwatch_server.storage.jetstream.log import JetStreamLog
from gradwatch_server.storage.store import Line, StorageError, StorageFault
from tests.support.nats_servers import NATSServer, NATSServers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


class Writer:
    """An engine that writes batches one after the other, and repeats what fails.

    Args:
        log: Where it writes.
        first_ns: The time of its first entry; each is a nanosecond later than the one before.
    """

    def __init__(self, log: JetStreamLog, first_ns: int = 1) -> None:
        self._log = log
        self._next_ns = first_ns
        self.acknowledged: list[int] = []
        self.faults: list[StorageFault] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            times = range(self._next_ns, self._next_ns + 10)
            try:
                self._log.append([Line(Entry(own, Tick())) for own in times])
            except StorageError as error:
                self.faults.append(error.fault)
                if error.fault is StorageFault.GONE:
                    return
            else:
                self.acknowledged += times
                self._next_ns = times.stop

    def has(self, more: int) -> Callable[[], bool]:
        """Return what says whether so many more entries were acknowledged."""
        least = len(self.acknowledged) + more
        return lambda: len(self.acknowledged) >= least

    def wait(self) -> None:
        """Wait until it was refused."""
        self._thread.join()

    def end(self) -> None:
        """Write no more."""
        self._ended.set()
        self._thread.join()


def times_of(log: JetStreamLog) -> list[int]:
    found = list(log.entries())
    assert [offset for offset, _ in found] == list(range(1, len(found) + 1))
    return [entry.received_ns for _, entry in found]


def made(connection: Connection, name: str) -> JetStreamStream:
    stream = JetStreamStream(connection, name)
    patiently(lambda: stream.ensure([f"{name}.>"], replicas=3, max_bytes=None))
    return stream


def leader_of(servers: NATSServers, connection: Connection, stream: str) -> NATSServer:
    info = connection.call(lambda client: client.jetstream().stream_info(stream), "the leader")
    assert info.cluster is not None
    return next(own for own in servers.servers if own.name == info.cluster.leader)


def test_nothing_is_lost_or_doubled_while_servers_are_killed(nats_cluster: NATSServers) -> None:
    """Five times one of three, whichever it is; meanwhile the log is opened anew."""
    chosen = random.Random(7)
    with Connection(nats_cluster.urls) as connection:
        stream = made(connection, "KILLED")
        writer = Writer(JetStreamLog(stream, "KILLED", 0, 1))
        for _ in range(5):
            server = chosen.choice(nats_cluster.servers)
            wait_until(writer.has(100), "appends go on")
            server.kill()
            wait_until(writer.has(100), "without one server too")
            server.start()
            wait_until(server.is_ready, "it is back")
        writer.end()
        found = times_of(JetStreamLog(stream, "KILLED", 0, 2))

    assert writer.faults.count(StorageFault.GONE) == 0
    assert found[: len(writer.acknowledged)] == writer.acknowledged
    assert len(found) - len(writer.acknowledged) in (0, 10)  # the last one was not told


def test_a_leader_that_stood_still_writes_nothing_twice(nats_cluster: NATSServers) -> None:
    """The others choose another one; what it took meanwhile does not count when it goes on."""
    with Connection(nats_cluster.urls) as connection:
        stream = made(connection, "PAUSED")
        writer = Writer(JetStreamLog(stream, "PAUSED", 0, 1))
        wait_until(writer.has(100), "appends")
        leader = leader_of(nats_cluster, connection, "PAUSED")
        leader.pause()
        wait_until(writer.has(100), "another leader")
        leader.go_on()
        wait_until(writer.has(100), "appends go on")
        writer.end()
        assert times_of(JetStreamLog(stream, "PAUSED", 0, 2)) == writer.acknowledged


def test_an_owner_that_is_followed_while_it_writes_is_refused(nats_cluster: NATSServers) -> None:
    """Between two of its batches or within one: what it was told is there, once, and no more."""
    with Connection(nats_cluster.urls) as mine, Connection(nats_cluster.urls) as theirs:
        stream, told = made(mine, "FOLLOWED"), list[int]()
        for epoch in range(1, 17, 2):
            own = made(mine if epoch % 4 == 1 else theirs, "FOLLOWED")
            writer = Writer(JetStreamLog(own, "FOLLOWED", 0, epoch), epoch * 1_000_000)
            wait_until(writer.has(50), "appends")
            follower = JetStreamLog(stream, "FOLLOWED", 0, epoch + 1)
            writer.wait()
            told += writer.acknowledged
            assert writer.faults == [StorageFault.GONE]
            assert times_of(follower) == told
