"""What the log of the process says of runs: once each, and no more than a person can read (S56)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from gradwatch_server.budgets import Budgets
from gradwatch_server.engine.run_log import RUN_LINES
from gradwatch_wire import Bye
from tests.support.engine import Start, attached
from tests.support.waiting import wait_until

LOGGER = "gradwatch_server.engine.run_log"


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    """Return what was written so far: `lines()`."""
    caplog.set_level(logging.INFO, LOGGER)
    return lambda: [one.getMessage() for one in caplog.records if one.name == LOGGER]


def test_a_run_that_attaches_steps_and_ends_is_told_once_each(start: Start, lines: Any) -> None:
    running = start()
    ranks = [
        running.peer(rank=rank, world=3, host=f"h{rank}\x1b[31m", pid=7).attach()
        for rank in range(3)
    ]
    for step in range(5, 9):
        for peer in ranks:
            peer.steps(step, 1.0)
    for peer in ranks:
        peer.acked(peer.send(Bye()))
    wait_until(lambda: len(lines()) >= 4, "the end is told")

    assert lines() == [
        "run gpt, attempt 1: attached: rank 0 of 3 on h0\\x1b[31m, pid 7",
        "run gpt, attempt 1: all 3 ranks attached",
        "run gpt, attempt 1: first step: 5",
        "run gpt, attempt 1: ended: 3 of 3 ranks, 18 records stored, 0 lost",
    ]


def test_a_rank_that_crashes_is_a_warning(
    start: Start, lines: Any, caplog: pytest.LogCaptureFixture
) -> None:
    _, peer = attached(start())
    peer.steps(3, 1.0)
    peer.acked(peer.send(Bye(reason="exception")))
    wait_until(lambda: len(lines()) >= 4, "the end is told")

    assert lines()[2:] == [
        "run gpt, attempt 1: rank 0 ended with an exception, last step 3",
        "run gpt, attempt 1: ended: 1 of 1 ranks, 3 records stored, 0 lost",
    ]
    levels = [one.levelno for one in caplog.records if one.name == LOGGER]
    assert levels == [logging.INFO, logging.INFO, logging.WARNING, logging.INFO]


@pytest.mark.slow
def test_a_rank_that_is_lost_and_comes_back_is_told_with_how_long_it_was_silent(
    start: Start, lines: Any
) -> None:
    _, peer = attached(start(session_timeout_s=0.3))
    wait_until(lambda: len(lines()) == 2, "the rank is lost")
    peer.steps(0, 1.0)
    wait_until(lambda: len(lines()) >= 4, "and is heard again")

    assert lines()[1].startswith("run gpt, attempt 1: rank 0 is lost: no sign of life for ")
    assert lines()[1].endswith(" s, last step none")
    assert lines()[2:4] == [
        "run gpt, attempt 1: rank 0 is heard again",
        "run gpt, attempt 1: first step: 0",
    ]


def test_two_jobs_under_one_name_are_told_once(start: Start, lines: Any) -> None:
    running = start()
    one = running.peer(job="one").attach()
    two = running.peer(job="two").attach()
    for step in range(4):
        one.steps(step, 1.0)
        two.steps(step, 1.0)
    running.shows(frames=4)

    told = [line for line in lines() if "live jobs" in line]
    advice = "give each a run name of its own"
    assert told == [f"run gpt, attempt 1: 2 live jobs under this name, attempts 1, 2: {advice}"]


def test_nothing_is_told_again_after_a_restart(start: Start, lines: Any) -> None:
    running, peer = attached(start())
    peer.steps(0, 1.0)
    running.shows(frames=1)
    before = lines()
    running = start(endpoint=running.endpoint)
    peer.greet()
    peer.steps(1, 1.0)
    running.shows(frames=2)

    assert before == lines() == lines()[:2]


@pytest.mark.slow
def test_a_crash_loop_writes_some_lines_an_hour(start: Start, lines: Any) -> None:
    running = start()
    for number in range(RUN_LINES):
        peer = running.peer(job=f"job{number}")
        peer.greet()
        peer.acked(peer.send(Bye(reason="exception")))
    running.shows(attempt=RUN_LINES)

    assert len(lines()) == RUN_LINES


def test_all_runs_together_write_so_many_lines_a_minute(start: Start, lines: Any) -> None:
    running = start(budgets=Budgets(log_lines_per_min=5))
    for number in range(9):
        running.peer(run=f"run{number}").greet()
    running.shows(run="run8")

    assert len(lines()) == 5
