"""The aggregator's clock: what happens to the system's clock is not noticed, over a restart too."""

from __future__ import annotations

import time

import pytest

from gradwatch_server.clock import Clock

HOUR_NS = 3_600 * 10**9


@pytest.mark.parametrize("hours", [-1, 1])
def test_it_goes_on_when_the_system_clock_is_set(hours: int) -> None:
    set_by_ns = 0
    clock = Clock(wall_ns=lambda: time.time_ns() + set_by_ns)
    before = clock.now_ns()
    set_by_ns = hours * HOUR_NS

    assert before <= clock.now_ns() < before + HOUR_NS / 2


def test_it_is_made_of_the_clocks_it_is_given() -> None:
    """The wall clock as it was at first, and what passed on the steady one."""
    steady_ns = 7
    clock = Clock(wall_ns=lambda: 1_000, steady_ns=lambda: steady_ns)
    steady_ns += 30

    assert clock.now_ns() == 1_030


def test_it_does_not_fall_behind_what_the_log_says() -> None:
    """The system's clock was set back between two starts: from there on it is as far ahead."""
    clock = Clock()
    past_ns = clock.now_ns() + HOUR_NS
    clock.catch_up(past_ns)

    assert past_ns <= clock.now_ns() < past_ns + HOUR_NS / 2


def test_it_does_not_follow_a_log_of_another_century() -> None:
    """S48: a log that was stamped 2100 would stamp everything after it so."""
    clock = Clock()
    now = clock.now_ns()

    assert not clock.catch_up(now + 25 * HOUR_NS)
    assert now <= clock.now_ns() < now + HOUR_NS / 2
    assert clock.catch_up(now + 23 * HOUR_NS)
    assert now + 23 * HOUR_NS <= clock.now_ns()


def test_it_follows_the_log_while_the_system_clock_is_not_set() -> None:
    """A machine without a battery begins in 1970."""
    clock = Clock(wall_ns=lambda: 5 * HOUR_NS)
    log_ns = 1_800_000_000 * 10**9

    assert clock.catch_up(log_ns)
    assert log_ns <= clock.now_ns() < log_ns + HOUR_NS


def test_it_does_not_wait_for_what_is_long_ago() -> None:
    clock = Clock()
    now = clock.now_ns()
    clock.catch_up(now - HOUR_NS)

    assert now <= clock.now_ns() < now + HOUR_NS / 2
