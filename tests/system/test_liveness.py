"""Runs that hang, are killed, frozen or crash tell so on the stream: real processes throughout."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.aggregator import Aggregator
from tests.support.job import Train
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow


def events(aggregator: Aggregator) -> list[tuple[str, str, str]]:
    """Return rule, state and severity of each alert event."""
    told: list[dict[str, Any]] = aggregator.get("/alerts?after=0").json()
    return [(event["rule"], event["state"], event["severity"]) for event in told]


def has(aggregator: Aggregator, *event: str) -> bool:
    return event in events(aggregator)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A hang is told after seconds, and a rank is lost after some more."""
    config = tmp_path / "gradwatch.toml"
    config.write_text("[rules.run_stalled]\ninfo_s = 3.0\n[rules.rank_silent]\nafter_s = 1.0\n")
    return {"GRADWATCH_CONFIG": str(config), "GRADWATCH_SESSION_TIMEOUT_S": "15"}


def test_a_hang_is_a_stall_that_ends_with_the_next_step(
    aggregator: Aggregator, train: Train
) -> None:
    """S1: the process lives and says so, its training thread waits for something."""
    aggregator.start()
    job = train(1, "--run", "hung", "--hold-at", "20")
    wait_until(lambda: has(aggregator, "run_stalled", "firing", "info"), "the stall is told")
    health = aggregator.health("hung")
    assert (health["phase"], health["status"]) == ("running", "stalled")
    assert health["reasons"][0].startswith("no step for ")
    assert health["ranks"][0]["state"] == "alive"

    job.release()
    job.wait()
    assert aggregator.health_of_ended("hung")["status"] == "healthy"
    assert events(aggregator)[-1] == ("run_stalled", "resolved", "info")


def test_a_frozen_process_is_silent_and_comes_back(aggregator: Aggregator, train: Train) -> None:
    """SIGSTOP: nothing is heard of it; with SIGCONT all is well again."""
    aggregator.start()
    job = train(1, "--run", "frozen", "--steps", "400", "--pause-s", "0.05")
    job.wait_for_training()
    wait_until(lambda: any(run["step"] for run in aggregator.get("/runs").json()), "some steps")
    job.ranks[0].send_signal(signal.SIGSTOP)
    wait_until(lambda: has(aggregator, "rank_silent", "firing", "warning"), "the silence is told")
    job.ranks[0].send_signal(signal.SIGCONT)
    job.wait()

    assert aggregator.health_of_ended("frozen")["status"] in ("healthy", "degraded")
    assert has(aggregator, "rank_silent", "resolved", "warning")


def test_a_killed_trainer_is_lost_for_good(aggregator: Aggregator, train: Train) -> None:
    """S10: critical, and it stays so."""
    aggregator.start()
    job = train(1, "--run", "killed", "--kill-at", "20")
    job.ranks[0].wait(PATIENCE_S)
    wait_until(lambda: has(aggregator, "rank_lost", "firing", "critical"), "the loss is told")
    health = aggregator.health("killed")

    assert (health["phase"], health["status"]) == ("lost", "critical")
    metrics = aggregator.get("/metrics").text
    assert 'gradwatch_runs_in_phase{phase="lost"} 1.0' in metrics
    assert 'gradwatch_alerts_firing{severity="critical"} 0.0' in metrics


def test_a_crash_is_told_at_once(aggregator: Aggregator, train: Train) -> None:
    """S11: an exception in the training script."""
    aggregator.start()
    job = train(1, "--run", "crashed", "--raise-at", "20")
    assert job.ranks[0].wait(PATIENCE_S) != 0
    health = aggregator.health_of_ended("crashed")

    assert (health["phase"], health["status"]) == ("failed", "critical")
    assert health["reasons"][0].startswith("training of a rank ended with an exception")
    assert events(aggregator) == [("run_failed", "firing", "critical")]
