"""Steps that a GradScaler skips, and its scale: what is normal, and what is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from gradwatch_server.core.alerting.rules.loss_scaler import ScalerMemory
from gradwatch_server.core.state_codec import decode, encode
from tests.support.core import Cluster

INF = math.inf
GROWTH = 100


class Scaled:
    """A job under a scaler that halves its scale at a skip, and doubles it every 100 steps."""

    def __init__(self, job: Any, scale: float = 65536.0) -> None:
        self.job, self.scale = job, scale
        self._step, self._taken = 0, 0

    def go(self, *, skip: bool = False, loss: float | None = 2.0) -> list[tuple[str, str, str]]:
        norm = INF if skip else 1.0
        told = self.job.step(self._step, norm, loss_scale=self.scale, loss=loss)
        self._step += 1
        self._taken = 0 if skip else self._taken + 1
        if skip:
            self.scale /= 2.0
        elif self._taken % GROWTH == 0:
            self.scale *= 2.0
        return [
            (alert.rule, str(alert.state), str(alert.severity))
            for alert in told
            if alert.severity != "info"
        ]

    def settle(self, steps: int = 32) -> Scaled:
        assert [self.go() for _ in range(steps)] == [[]] * steps
        return self


@pytest.fixture
def scaled() -> Callable[..., Scaled]:
    def make(**settings: Any) -> Scaled:
        return Scaled(Cluster(names=("a", "b")).start(), **settings)

    return make


def test_up_to_16_skips_in_a_row_find_the_scale(scaled: Callable[..., Scaled]) -> None:
    run = scaled(scale=2.0**24)

    assert [run.go(skip=True) for _ in range(16)] == [[]] * 16
    for _ in range(3):
        run.settle(8)
        assert run.go(skip=True) == []


@pytest.mark.slow
def test_a_skip_for_each_growth_is_how_a_scaler_works(scaled: Callable[..., Scaled]) -> None:
    """Forty of them, for 4,000 steps."""
    run = scaled().settle(99)
    for _ in range(40):
        assert run.go() == []
        assert run.go(skip=True) == []
        run.settle(99)


def test_three_in_a_row_are_a_warning_and_eight_critical(scaled: Callable[..., Scaled]) -> None:
    """The origin is the first of them; the count goes up with them."""
    run = scaled().settle()
    told = [run.go(skip=True) for _ in range(10)]

    assert told[2] == [("loss_scaler", "firing", "warning")]
    assert told[7] == [("loss_scaler", "firing", "critical")]
    assert [events for events in told if events] == [told[2], told[7]]
    origin = run.job.alerts[-1].origin
    assert (origin.step, origin.rank, origin.layer, origin.value) == (32, 0, "b", 8.0)
    assert "step 32: 3 in a row" in next(
        a.message for a in run.job.alerts if a.rule == "loss_scaler"
    )


@pytest.mark.slow
def test_it_is_over_after_sixteen_steps_that_were_taken(scaled: Callable[..., Scaled]) -> None:
    run = scaled().settle()
    for _ in range(3):
        run.go(skip=True)
    told = [run.go() for _ in range(16)]

    assert told == [[]] * 15 + [[("loss_scaler", "resolved", "warning")]]


def test_a_sixth_skip_among_a_hundred_is_a_warning(scaled: Callable[..., Scaled]) -> None:
    """Five are not; its origin is the first that counts."""
    run = scaled(scale=2.0**30).settle()
    told = []
    for _ in range(6):
        told += [run.go() for _ in range(9)]
        told.append(run.go(skip=True))

    assert [events for events in told if events] == [[("loss_scaler", "firing", "warning")]]
    assert told[-1]
    assert run.job.alerts[-1].origin.step == 41
    assert "6 of the last 100" in run.job.alerts[-1].message


def test_a_scale_that_is_set_anew_is_looked_for_again(scaled: Callable[..., Scaled]) -> None:
    """A script that loads another scaler."""
    run = scaled(scale=64.0).settle(50)
    run.scale = 65536.0

    assert [run.go(skip=True) for _ in range(10)] == [[]] * 10


def test_a_skip_whose_loss_was_bad_is_no_skip(scaled: Callable[..., Scaled]) -> None:
    run = scaled().settle()
    told = [run.go(skip=True, loss=math.nan) for _ in range(30)]

    assert told == [[("nonfinite", "firing", "critical")], *[[]] * 29]


def test_a_loss_that_nobody_gave_is_told_of_by_the_scale(scaled: Callable[..., Scaled]) -> None:
    """NaN weights skip every step: critical after 8, by one alert more than the finding."""
    run = scaled().settle()
    told = [event for _ in range(60) for event in run.go(skip=True, loss=None)]

    assert told == [("loss_scaler", "firing", "warning"), ("loss_scaler", "firing", "critical")]


def test_skips_below_one_are_not_the_search_for_a_scale(scaled: Callable[..., Scaled]) -> None:
    run = scaled(scale=0.5)

    assert [run.go(skip=True) for _ in range(3)][-1] == [("loss_scaler", "firing", "critical")]


def test_a_scale_that_falls_again_and_again_is_a_warning(scaled: Callable[..., Scaled]) -> None:
    """The fourth fall without a growth, 30 steps apart: too few for the other rule."""
    run = scaled().settle()
    told = []
    for _ in range(4):
        run.settle(30)
        told.append(run.go(skip=True))
    told.append(run.go())

    assert [event for events in told for event in events] == [("loss_scaler", "firing", "warning")]
    origin = run.job.alerts[-1].origin
    assert (origin.step, origin.usual, origin.value) == (63, 65536.0, 4096.0)
    assert ": 4096 (was 65536)" in run.job.alerts[-1].message
    later = [event for _ in range(120) for event in run.go()]
    assert later == [("loss_scaler", "resolved", "warning")]


def test_a_scale_below_one_is_critical(scaled: Callable[..., Scaled]) -> None:
    run = scaled(scale=0.5)
    told = [event for _ in range(40) for event in run.go()]

    assert told == [("loss_scaler", "firing", "critical")]
    assert "0.5 (limit 1)" in run.job.alerts[-1].message


def test_skips_are_counted_over_a_restart(scaled: Callable[..., Scaled]) -> None:
    run = scaled().settle()
    run.go(skip=True)
    memory = run.job.attempt.closed.memories["loss_scaler"]

    assert memory.in_a_row == 1
    assert decode(encode(memory), ScalerMemory) == memory


def test_a_frame_that_was_skipped_scores_what_its_layers_do() -> None:
    for changes, score in (
        ({"l2": [INF, 1.0], "loss_scale": 8.0, "loss": 2.0}, 0.6),
        ({"l2": [INF, 1.0], "loss_scale": 8.0, "loss": math.nan}, 0.0),
        ({"l2": [1.0, 1.0], "loss_scale": 8.0, "loss": math.nan}, 0.0),
        ({"l2": [1.0, 1.0], "loss": INF}, 0.0),
        ({"l2": [INF, 1.0]}, 0.0),
        ({"l2": [1.0, 1.0], "loss": 2.0}, 1.0),
    ):
        job = Cluster(names=("a", "b")).start()
        job.step(0, **changes)
        assert job.health()["score"]["last"] == pytest.approx(score)
