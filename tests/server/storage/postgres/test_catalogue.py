"""What owners publish of their runs: what is written, how often, and who is told again by it."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gradwatch_server.cluster.alerts.notifying import LedgerStanding
from gradwatch_server.cluster.catalogue.publisher import EVERY_S, PartitionPublisher
from gradwatch_server.cluster.catalogue.reader import MAX_READS, CatalogueReader
from gradwatch_server.cluster.catalogue.summary import decode_run, encode_run
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_server.engine.alert_delivery import AlertChange
from gradwatch_server.notify.standing import AFTER_END_S
from gradwatch_server.storage.ledger import PAGE_RUNS, RunSummary
from gradwatch_server.storage.postgres.ledger import PostgresLedger
from tests.server.core.conftest import SECOND
from tests.server.core.conftest import Cluster as Job
from tests.support.engine import RunningEngine
from tests.support.ledger_database import LedgerDatabase
from tests.support.peer import NewPeer


@pytest.fixture
def ledger(ledger_database: LedgerDatabase) -> PostgresLedger:
    return ledger_database.ledger


class Told:
    """A run of two ranks whose gradients became NaN, as its owner tells of it in the ledger."""

    def __init__(self, ledger: PostgresLedger) -> None:
        self.job = Job(world=2, names=("a",)).start()
        self.job.step(0, math.nan)
        (alert,) = (own for own in self.job.alerts if own.rule == "nonfinite")
        self._id = alert.id
        self._ledger = ledger
        self._own = ledger.take(1, 1)
        self._own.alert_events.add([AlertChange.of(alert).event])

    def publish(self) -> None:
        view = view_run(self.job.state.runs["gpt"])
        self._own.runs.publish({"gpt": encode_run(view, {}, self.job.now_ns, None)}, 7)

    def is_repeated(self, after_s: float = 0.0) -> bool:
        standing = LedgerStanding(self._ledger.alert_events, self._ledger.runs)
        return standing.is_repeated("gpt", self._id, self.job.now_ns / SECOND + after_s)


@pytest.fixture
def told(ledger: PostgresLedger) -> Told:
    return Told(ledger)


def test_the_alert_of_a_run_that_lives_is_repeated_however_long_that_is(told: Told) -> None:
    assert not told.is_repeated()  # of what nobody published nothing is known
    told.publish()
    assert told.is_repeated(after_s=7 * AFTER_END_S)


def test_that_of_a_run_that_ended_well_is_not(told: Told) -> None:
    for rank in (0, 1):
        told.job.bye(rank)
    told.publish()
    assert not told.is_repeated()


def test_that_of_one_that_did_not_is_for_a_day(told: Told) -> None:
    told.job.bye(0)
    told.job.lose(1)
    told.publish()
    assert told.is_repeated(after_s=AFTER_END_S - 60)
    assert not told.is_repeated(after_s=AFTER_END_S + 60)


def test_what_another_version_published_is_passed_over_if_it_cannot_be_read(told: Told) -> None:
    told.publish()
    for text in ("{}", "[]", "nonsense", '{"heard_ns": "1", "row": {}, "lives": {}}'):
        assert decode_run(RunSummary("gpt", 1, text, 7)) is None


def test_a_run_is_published_when_it_changed_and_only_so_often(
    ledger: PostgresLedger, start: Callable[..., RunningEngine], peers: NewPeer
) -> None:
    running = start()
    peer = peers(running.endpoint).attach()
    peer.steps(1, 1.0)
    running.shows(frames=1)
    publisher = PartitionPublisher(running.engine, ledger.take(1, 1).runs)

    def step_at(now_s: float) -> int | None:
        publisher.publish(now_s, 1.0)
        found = ledger.runs.get("gpt")
        known = None if found is None else decode_run(found)
        return None if known is None else known.step

    assert step_at(100.0) == 1
    peer.steps(2, 1.0)
    running.shows(frames=2)
    assert step_at(100.0 + EVERY_S / 2) == 1
    assert step_at(100.0 + EVERY_S) == 2


def test_what_cannot_be_worked_out_in_time_is_published_with_the_next_look(
    ledger: PostgresLedger, start: Callable[..., RunningEngine], peers: NewPeer
) -> None:
    running, runs = start(), ("a", "b", "c")
    for run in runs:
        peers(running.endpoint, run=run).attach().steps(1, 1.0)
        running.shows(run, frames=1)
    publisher = PartitionPublisher(running.engine, ledger.take(1, 1).runs)
    for number in (1, 2, 3):
        publisher.publish(100.0, 0.0)
        assert len(ledger.runs.after()) == number


def test_the_next_owner_withdraws_what_is_not_there_any_more(
    ledger: PostgresLedger, start: Callable[..., RunningEngine], peers: NewPeer
) -> None:
    ledger.take(1, 1).runs.publish({"old": "{}"}, 7)
    ledger.take(2, 1).runs.publish({"other": "{}"}, 7)
    running = start()
    peers(running.endpoint).attach().steps(1, 1.0)
    running.shows(frames=1)
    PartitionPublisher(running.engine, ledger.take(1, 2).runs).publish(100.0, 1.0)
    assert [found.run for found in ledger.runs.after()] == ["gpt", "other"]
    assert [found.run for found in ledger.runs.of_partitions([1])] == ["gpt"]


class Hanging:
    """A catalogue that does not answer before it is told to."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.num_reads = 0

    def get(self, run: str) -> RunSummary | None:
        self.num_reads += 1
        self.go_on.wait()
        return None

    def after(self, run: str = "", most: int = PAGE_RUNS) -> list[RunSummary]:
        raise NotImplementedError

    def of_partitions(self, partitions: Any) -> list[RunSummary]:
        raise NotImplementedError


def test_who_asks_while_the_ledger_hangs_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradwatch_server.cluster.catalogue.reader.READ_S", 0.05)
    hanging = Hanging()
    reader = CatalogueReader(hanging, lambda: False)

    async def ask() -> list[Any]:
        return [await reader.get("gpt") for _ in range(3 * MAX_READS)]

    assert asyncio.run(ask()) == [None] * 3 * MAX_READS
    assert hanging.num_reads == MAX_READS
    hanging.go_on.set()
