"""Alerts that are sent again: those of runs that go on, or that somebody may start again."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwatch_server.core.views.snapshot import view_run
from gradwatch_server.notify.alert_lookup import AFTER_END_S, AlertLookup
from tests.support.core import SECOND, Cluster


class Run:
    """A run of two ranks whose gradients became NaN."""

    def __init__(self) -> None:
        self.job = Cluster(world=2, names=("a",)).start()
        self.job.step(0, math.nan)
        (self.alert,) = (alert for alert in self.job.alerts if alert.rule == "nonfinite")

    def is_resent(self, after_s: float = 0.0) -> bool:
        """Tell whether it is, some time after the newest entry."""
        runs = {"gpt": view_run(self.job.state.runs["gpt"])}
        now_s = self.job.now_ns / SECOND + after_s
        return AlertLookup(runs.get).is_resent("gpt", self.alert.id, now_s)


@pytest.fixture
def run() -> Run:
    return Run()


def test_as_long_as_a_rank_lives(run: Run) -> None:
    assert run.is_resent(after_s=7 * AFTER_END_S)
    run.job.bye(0)
    assert run.is_resent()


def test_not_once_it_is_over(run: Run) -> None:
    for step in range(1, 9):
        run.job.step(step)
    assert not run.is_resent()


def test_not_once_all_ranks_ended_well(run: Run) -> None:
    for rank in (0, 1):
        run.job.bye(rank)
    assert not run.is_resent()


@pytest.mark.parametrize("how", ["failed", "lost"])
def test_for_a_day_where_a_rank_did_not_and_not_once_the_run_was_taken_up(
    run: Run, how: str
) -> None:
    """Somebody may start it again."""
    run.job.bye(0)
    _: Any = run.job.bye(1, "exception") if how == "failed" else run.job.lose(1)
    assert run.is_resent(after_s=AFTER_END_S - 60.0)
    assert not run.is_resent(after_s=AFTER_END_S + 60.0)

    run.job.start()
    assert not run.is_resent()


def test_the_day_begins_at_the_end_and_not_when_a_run_began_to_hang(run: Run) -> None:
    for _ in range(3):
        run.job.beat(0, 1, after=AFTER_END_S)
    run.job.bye(0)
    run.job.lose(1)
    assert run.is_resent(after_s=AFTER_END_S - 60.0)
    assert not run.is_resent(after_s=AFTER_END_S + 60.0)


def test_not_of_a_run_that_left_memory(run: Run) -> None:
    assert not AlertLookup(lambda _run: None).is_resent("gpt", run.alert.id, 0.0)
