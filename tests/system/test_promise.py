"""The promise of the README, one test for each of its claims, with real processes."""

from __future__ import annotations

import functools
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gradwatch
from gradwatch_server.storage.sqlite.history import read_log
from gradwatch_wire import SEQUENCED, decode
from tests.support.aggregator import Aggregator
from tests.support.job import Train
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def is_forked() -> bool:
    """Processes begin as a user's do."""
    return False


@pytest.fixture
def watch(aggregator: Aggregator) -> Iterator[gradwatch.Watch]:
    """A watch in this very process, with one layer that has a gradient."""
    aggregator.start()
    model = torch.nn.Linear(8, 8)
    model(torch.ones(1, 8)).sum().backward()
    made = gradwatch.attach(model, run="promise", endpoint=aggregator.ingest)
    assert isinstance(made, gradwatch.Watch)
    yield made
    made.close()


def in_the_log(directory: Path) -> Counter[tuple[bytes, int]]:
    """Count how often each sequenced record is in the log that a killed aggregator left."""
    found: Counter[tuple[bytes, int]] = Counter()
    for entry in read_log(directory):
        if entry.kind in SEQUENCED and entry.payload is not None:
            envelope = decode(entry.payload)
            if envelope.seq:
                found[envelope.session, envelope.seq] += 1
    return found


def acked_by(watch: gradwatch.Watch) -> int:
    """Number of records that the client has been told are stored."""
    return int(watch.stats()["acked"])


def has_acked(watch: gradwatch.Watch, count: int) -> bool:
    return acked_by(watch) > count


def test_training_never_waits(aggregator: Aggregator, train: Train) -> None:
    """The aggregator is stopped in the middle and stays so: all steps are taken, then it closes."""
    aggregator.start()
    job = train(2, "--run", "promise", "--steps", "100")
    wait_until(lambda: aggregator.get("/runs/promise").is_success, "the run")
    aggregator.send(signal.SIGSTOP)

    for output in job.wait():  # which ends although the aggregator still stands
        assert "collected=100\n" in output


@pytest.mark.parametrize("buffer_bytes", [32 << 20, 1 << 16])
def test_every_record_is_stored_once_or_counted_as_lost_under_its_run_and_rank(
    aggregator: Aggregator, train: Train, buffer_bytes: int
) -> None:
    aggregator.start()
    job = train(
        *(2, "--run", "promise", "--steps", "200", "--pause-s", "0.02", "--hold-at", "150"),
        *("--buffer-bytes", str(buffer_bytes)),
    )
    for step in (30, 90):
        aggregator.reaches("promise", step)
        aggregator.stop(signal.SIGKILL)
        aggregator.start()
    aggregator.reaches("promise", 148)  # a worker that ended in an outage would deliver nothing
    job.release()
    job.wait()
    health = aggregator.health_of_ended("promise")
    aggregator.stop(signal.SIGKILL)
    log = in_the_log(aggregator.directory)

    produced = 202  # a manifest, the steps, a BYE
    assert set(log.values()) == {1}
    assert [rank["stored"] + rank["lost"] for rank in health["ranks"]] == [produced, produced]
    assert health["records"]["stored"] == len(log)
    assert [rank["state"] for rank in health["ranks"]] == ["ended", "ended"]


def test_acknowledged_means_committed(aggregator: Aggregator, watch: gradwatch.Watch) -> None:
    """SIGKILL at some moment under load: what the client was told is stored is in the log."""
    for _ in range(3):
        enough = acked_by(watch) + 50
        for _ in range(300):
            watch.collect()
        wait_until(functools.partial(has_acked, watch, enough), "some acknowledged")
        acked = acked_by(watch)
        aggregator.stop(signal.SIGKILL)
        log = in_the_log(aggregator.directory)
        (session,) = {session for session, _ in log}

        assert {(session, seq) for seq in range(1, acked + 1)} <= set(log)
        aggregator.start()


@pytest.mark.parametrize("environ", [{"GRADWATCH_SESSION_TIMEOUT_S": "1"}])
def test_a_killed_worker_shows_as_ended_uncleanly(aggregator: Aggregator, train: Train) -> None:
    """Of two ranks one is killed: it is `lost`, and what it had sent is kept.

    The other one's collective fails without it, and it says so as it ends.
    """
    aggregator.start()
    job = train(2, "--run", "promise", "--kill-at", "20", "--fault-rank", "1")
    job.ranks[1].wait(PATIENCE_S)

    def states() -> dict[int, str]:
        ranks = aggregator.health("promise")["ranks"]
        return {rank["rank"]: rank["state"] for rank in ranks}

    wait_until(lambda: states() == {0: "failed", 1: "lost"}, "one is failed, one lost")
    health = aggregator.health("promise")

    assert (health["phase"], health["status"]) == ("failed", "critical")
    assert health["ranks"][1]["stored"] > 0
    assert {alert["rule"] for alert in health["alerts"]["items"]} == {"liveness"}
    assert "ranks lost: 1" in health["reasons"]
