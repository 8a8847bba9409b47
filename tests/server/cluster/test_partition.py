"""Partitions that share few threads: one that is slow to open keeps no other waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gradwatch_server.api.alert_stream import AlertStream
from gradwatch_server.api.app import ApiParts
from gradwatch_server.clock import Clock
from gradwatch_server.cluster.messages.parcels import Answer
from gradwatch_server.cluster.messages.turns import Turns
from gradwatch_server.cluster.partitions.partition import Partition, Surroundings, retention_in
from gradwatch_server.cluster.partitions.takeovers import Takeovers
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.engine.metrics import Timings
from gradwatch_server.settings import Settings
from gradwatch_server.storage.deliveries import DeliveryLog
from gradwatch_server.storage.ledger import PartitionRuns
from gradwatch_server.storage.retention import RetentionPolicy
from gradwatch_server.storage.sqlite.store import SQLiteStore
from gradwatch_server.storage.store import AlertEventReader
from tests.support.waiting import PATIENCE_S, wait_until

SLOW, OTHER = 1, 2


class OwnStore(SQLiteStore):
    """A store of a partition."""

    @property
    def runs(self) -> PartitionRuns:
        raise NotImplementedError


class Storage:
    """Stores of a directory each, of which one takes its time to open."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.opened: list[int] = []
        self.go_on = threading.Event()

    @property
    def alert_events(self) -> AlertEventReader:
        raise NotImplementedError

    def open(self, partition: int, epoch: int) -> OwnStore:
        self.opened.append(partition)
        if partition == SLOW:
            self.go_on.wait(PATIENCE_S)
        return OwnStore.open(self._directory / str(partition), Clock())

    def has_entries(self, partition: int) -> bool:
        raise NotImplementedError

    def open_deliveries(self, epoch: int) -> DeliveryLog:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class Nobody:
    """Takes answers to clients that there are none of."""

    def is_live(self, node: str) -> bool:
        return True

    def post(self, node: str, answer: Answer) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Do nothing."""


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path)


@pytest.fixture
def around(tmp_path: Path, storage: Storage) -> Iterator[Surroundings]:
    """Two threads that open, and one that stops."""
    events = SQLiteStore.open(tmp_path / "events", Clock())
    with ThreadPoolExecutor(2) as pool, ThreadPoolExecutor(1) as stop_pool:
        yield Surroundings(
            settings=Settings(),
            retention=RetentionPolicy(),
            storage=storage,
            postman=Nobody,
            alert_stream=AlertStream(events.alert_events),
            parts=ApiParts(),
            endpoint="tcp://127.0.0.1:1",
            http_url="http://127.0.0.1:1",
            timings=Timings(),
            takeovers=Takeovers(),
            on_alerts=lambda: None,
            turns=Turns(),
            pool=pool,
            stop_pool=stop_pool,
        )
        storage.go_on.set()
    events.close()


def begin(number: int, around: Surroundings) -> Partition:
    partition = Partition(number, 1, Rules(), around)
    partition.begin()
    return partition


def test_one_that_is_looked_at_while_it_opens_takes_no_other_thread(
    storage: Storage, around: Surroundings
) -> None:
    slow = begin(SLOW, around)
    wait_until(lambda: storage.opened == [SLOW], "it is being opened")
    for _ in range(10):
        slow.look()
    other = begin(OTHER, around)
    wait_until(lambda: other.running, "the other one runs")
    storage.go_on.set()
    wait_until(lambda: slow.running, "the slow one runs")
    assert storage.opened == [SLOW, OTHER]
    slow.end()
    other.end()
    wait_until(lambda: slow.has_ended and other.has_ended, "their end")


def test_the_end_of_one_waits_for_no_other_that_opens(
    storage: Storage, around: Surroundings
) -> None:
    other = begin(OTHER, around)
    wait_until(lambda: other.running, "it runs")
    slow = [begin(SLOW, around) for _ in range(2)]  # all threads that open
    wait_until(lambda: storage.opened == [OTHER, SLOW, SLOW], "they are being opened")
    slow[0].end()  # which is up to the thread that opens it
    other.end()
    wait_until(lambda: other.has_ended, "the end of the other one")
    assert not slow[0].has_ended
    slow[1].end()
    storage.go_on.set()
    wait_until(lambda: all(own.has_ended for own in slow), "the end of the slow ones")


@pytest.mark.parametrize(
    ("stream_bytes", "log_bytes", "expected"),
    [(None, 5 << 30, 5 << 30), (64 << 30, 5 << 30, 3 << 28), (64 << 30, 1 << 20, 1 << 20)],
)
def test_all_logs_together_fit_into_the_stream(
    stream_bytes: int | None, log_bytes: int, expected: int
) -> None:
    settings = Settings(cluster_log_max_bytes=stream_bytes, log_max_bytes=log_bytes)
    assert retention_in(settings, 64).log_max_bytes == expected
