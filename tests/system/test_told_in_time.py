"""Times that the rules state: each fault is on the stream within that time. Real processes.

Two ranks train with DDP, an aggregator judges, a client reads the stream of server-sent events and
notes when each event came. One fault each: a hang, an exception, a SIGKILL, a loss that diverges,
and a rank that is frozen.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.aggregator import Aggregator
from tests.support.job import Job, Train
from tests.support.listener import Listener
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

INFO_S, WARNING_S, CRITICAL_S = 3.0, 8.0, 13.0
SILENT_S: Final = 2.0
SESSION_TIMEOUT_S: Final = 16.0
LOGGED_S: Final = 10.0
"""How much later than it says a silence may be told, by its own words."""

SLACK_S: Final = 5.0
"""What a busy machine may add: the clocks of the rules tick once a second, and processes wait."""

RULES: Final = f"""
[rules.liveness]
info_s = {INFO_S}
info_factor = 1
warning_s = {WARNING_S}
warning_factor = 1
critical_s = {CRITICAL_S}
silent_s = {SILENT_S}
"""


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Seconds where the defaults are minutes."""
    config = tmp_path / "gradwatch.toml"
    config.write_text(RULES)
    return {"GRADWATCH_CONFIG": str(config), "GRADWATCH_SESSION_TIMEOUT_S": str(SESSION_TIMEOUT_S)}


@pytest.fixture
def stream(aggregator: Aggregator) -> Iterator[Listener]:
    """A reader of the stream, from before the first event on."""
    aggregator.start()
    listener = Listener(aggregator.url, "/alerts/stream")
    yield listener
    listener.close()


@pytest.fixture
def job(aggregator: Aggregator, stream: Listener, train: Train) -> Callable[..., Job]:
    """Start two ranks that train for longer than any test, and wait until they have a history."""

    def start(run: str, *arguments: str) -> Job:
        made = train(2, "--run", run, "--steps", "100000", "--pause-s", "0.02", *arguments)
        made.wait_for_training()
        aggregator.reaches(run, 40)
        return made

    return start


def told(
    stream: Listener, rule: str, severity: str, since_s: float
) -> tuple[dict[str, Any], float]:
    """Wait for an event that fires; return it, and how many seconds after *since_s* it came."""

    def find() -> tuple[dict[str, Any], float] | None:
        for event, at_s in zip(stream.events, stream.times_s, strict=False):
            kind = event["rule"], event["state"], event["severity"]
            if kind == (rule, "firing", severity) and at_s >= since_s:
                return event, at_s - since_s
        return None

    found = wait_until(find, f"{severity} of {rule}")
    assert found is not None
    return found


def test_a_hang_is_told_three_times(
    aggregator: Aggregator, stream: Listener, job: Callable[..., Job]
) -> None:
    """A rank waits for something, the other one for it: info, then warning, then critical."""
    hung = job("hung", "--hold-at", "60", "--hold-rank", "1")
    aggregator.reaches("hung", 59)
    since_s = time.monotonic()
    ids = set()
    for severity, limit_s in (("info", INFO_S), ("warning", WARNING_S), ("critical", CRITICAL_S)):
        event, after_s = told(stream, "liveness", severity, since_s)
        assert after_s <= limit_s + SLACK_S
        assert event["last_step"] == 59
        ids.add(event["id"])
    assert len(ids) == 1
    health = aggregator.health("hung")
    assert (health["phase"], health["status"]) == ("running", "critical")
    assert [rank["state"] for rank in health["ranks"]] == ["alive", "alive"]

    hung.release()
    wait_until(lambda: stream.events[-1]["state"] == "resolved", "it is over with the next step")


def test_an_exception_is_told_at_once(
    aggregator: Aggregator, stream: Listener, job: Callable[..., Job]
) -> None:
    crashed = job("crashed", "--raise-at", "100", "--fault-rank", "1")
    crashed.ranks[1].wait()
    ended_s = time.monotonic()
    event, _ = told(stream, "liveness", "critical", 0.0)

    assert time.monotonic() - ended_s <= SLACK_S
    assert 1 in event["origin"]["ranks"]
    assert event["origin"]["step"] == 99
    health = aggregator.health("crashed")
    assert health["status"] == "critical"
    assert any("failed after step 99: exception" in reason for reason in health["reasons"])


@pytest.mark.exhaustive
def test_a_killed_rank_is_told_after_the_session_timeout(
    stream: Listener, job: Callable[..., Job]
) -> None:
    """SIGKILL: it says nothing any more, which is a silence first."""
    killed = job("killed")
    since_s = time.monotonic()
    killed.ranks[1].send_signal(signal.SIGKILL)
    event: Any = wait_until(
        lambda: next((event for event in stream.events if "ank 1 lost" in event["message"]), None),
        "the loss of rank 1",
    )

    assert time.monotonic() - since_s <= SESSION_TIMEOUT_S + SLACK_S
    assert event["severity"] == "critical"
    assert len({event["id"] for event in stream.events if event["rule"] == "liveness"}) == 1


@pytest.mark.exhaustive
def test_a_run_that_diverges_is_told_at_that_step(
    stream: Listener, job: Callable[..., Job]
) -> None:
    """The loss is a million times what it was from step 100 on."""
    job("diverged", "--fault", "explode", "--fault-step", "100")
    event, _ = told(stream, "exploding", "warning", 0.0)
    assert (event["first_step"], event["fired_step"]) == (100, 100)
    worse, _ = told(stream, "exploding", "critical", 0.0)

    assert worse["raised_step"] <= 104
    assert worse["id"] == event["id"]


@pytest.mark.exhaustive
def test_a_loss_of_nan_is_told_at_that_step(stream: Listener, job: Callable[..., Job]) -> None:
    job("poisoned", "--fault", "batch", "--fault-step", "100", "--fault-rank", "1")
    event, _ = told(stream, "nonfinite", "critical", 0.0)

    assert (event["first_step"], event["fired_step"]) == (100, 100)
    assert event["origin"]["rank"] == 1


@pytest.mark.exhaustive
def test_a_frozen_rank_is_told_as_silent_and_then_as_lost(
    stream: Listener, job: Callable[..., Job]
) -> None:
    """SIGSTOP, the connection stays: nothing but its silence tells."""
    frozen = job("frozen")
    since_s = time.monotonic()
    frozen.ranks[1].send_signal(signal.SIGSTOP)
    silent, silent_s = told(stream, "liveness", "warning", since_s)
    lost, lost_s = told(stream, "liveness", "critical", since_s)

    assert silent_s <= SILENT_S + LOGGED_S + SLACK_S
    assert lost_s <= SESSION_TIMEOUT_S + SLACK_S
    assert silent["origin"]["rank"] == lost["origin"]["rank"] == 1

    frozen.ranks[1].send_signal(signal.SIGCONT)
    wait_until(lambda: stream.events[-1]["state"] == "resolved", "it is over")
    assert {event["id"] for event in stream.events if event["rule"] == "liveness"} == {silent["id"]}
