"""Causes that the run's own numbers show, in the messages of alerts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.frames.step_numbers import StepNumbers
from gradwatch_server.core.judge.deviations import LearningRate
from gradwatch_server.core.judge.series import FrameNumbers
from gradwatch_wire import Column
from tests.support.core import Cluster

HEALTHY = 120
RATE = 0.01

Go = Callable[..., list[Any]]


@pytest.fixture
def go() -> Go:
    """A job of 3 ranks that was healthy for 120 steps; each call is a further step."""
    job = Cluster(names=("a.w", "b.w"), world=3).start()
    random = np.random.default_rng(0)
    steps = iter(range(4_000))

    def step(
        norm: float = 1.0, losses: tuple[float, ...] = (2.0, 2.0, 2.0), lr: float = RATE
    ) -> Any:
        number = next(steps)
        scatter = np.exp(random.normal(0.0, 0.1, 5))
        norms = (norm * scatter[:2]).tolist()
        return [
            alert
            for rank, loss in enumerate(losses)
            for alert in job.stats(rank, number, norms, loss=loss * float(scatter[2 + rank]), lr=lr)
        ]

    for _ in range(HEALTHY):
        assert step() == []
    return step


def causes(alerts: list[Any]) -> list[str]:
    return [alert.origin.cause for alert in alerts if alert.severity.value != "info"]


def test_a_learning_rate_far_above_all_before_is_the_cause(go: Go) -> None:
    assert go(lr=30 * RATE) == []
    told = [alert for _ in range(8) for alert in go(norm=200.0, losses=(60.0,) * 3, lr=30 * RATE)]

    expected = f"the learning rate went from at most 0.01 to 0.3 from step {HEALTHY} on"
    assert causes(told)[0] == expected
    assert len(expected) <= 80
    assert told[0].message.endswith(f"; {expected}")


def test_the_loss_of_one_rank_is_the_cause(go: Go) -> None:
    told = [alert for _ in range(8) for alert in go(norm=200.0, losses=(2.0, 2.0, 900.0))]

    assert causes(told)[0].startswith("the loss of rank 2 is ")


def test_a_cause_that_no_number_shows_is_not_stated(go: Go) -> None:
    told = [alert for _ in range(8) for alert in go(norm=200.0, losses=(60.0,) * 3)]

    assert causes(told)[0] == ""


@pytest.mark.parametrize(
    ("rates", "climb"),
    [
        ([0.1] * 40 + [1.0], (0.1, 1.0, 40)),
        ([0.1] * 40 + [0.3], None),
        ([0.1] * 40 + [0.1 * 1.1**number for number in range(1, 31)], (0.1, 0.1 * 1.1**30, 40)),
        ([0.01 * (1 + number) for number in range(100)], None),  # a warm-up
        ([1.0] * 40 + [0.01] * 40 + [1.0], None),  # a restart
        ([0.1] * 40 + [1.0] + [0.9] * 200, None),  # long ago
    ],
)
def test_a_climb_is_far_above_all_rates_before(
    rates: list[float], climb: tuple[float, float, int] | None
) -> None:
    lr = LearningRate()
    for step, rate in enumerate(rates):
        lr.update(numbers_of(step, rate))
    assert lr.climb == (None if climb is None else pytest.approx(climb))


def numbers_of(step: int, rate: float, history: StepNumbers | None = None) -> FrameNumbers:
    return FrameNumbers(step, np.ones(1), 1.0, 1.0, rate, lambda: history)


@pytest.mark.parametrize("has_history", [True, False])
def test_a_climb_between_two_frames_begins_at_the_step_that_shows_it(has_history: bool) -> None:
    lr = LearningRate()
    for step in range(40):
        lr.update(numbers_of(10 * step, 0.1))
    between = Column.pack("<u8", range(391, 400))
    rates = Column.pack("<f8", [0.1] * 4 + [1.0] * 5)
    history = StepNumbers.read({"step": between, "lr": rates}, 400) if has_history else None
    lr.update(numbers_of(400, 1.0, history))
    assert lr.climb == (0.1, 1.0, 395 if has_history else 400)


def step_with(job: Any, step: int, update: float, lr: float = RATE, norm: float = 1.0) -> Any:
    columns = {
        "update_rms": [1e-4, 1e-4 * update],
        "weight_rms": [0.1, 0.1],
        "unchanged": [0.0, 0.0],
    }
    scatter = np.exp(np.random.default_rng(step).normal(0.0, 0.1, 2))
    return job.stats(0, step, (norm * scatter).tolist(), lr=lr, **(columns if update else {}))


@pytest.mark.parametrize(
    ("factor", "rate", "expected"),
    [
        (2.5, 1.0, "b.w: its update 2.5 times as large from step 104 on, same rate"),
        (2.5, 2.5, ""),  # so the rate explains it
        (1.5, 1.0, ""),
    ],
)
def test_an_update_that_became_large_first_is_the_cause(
    factor: float, rate: float, expected: str
) -> None:
    job = Cluster(names=("a.w", "b.w")).start()
    for step in range(HEALTHY):
        is_late = step >= 104
        update = 0.0 if step % 8 else factor if is_late else 1.0
        assert step_with(job, step, update, RATE * (rate if is_late else 1.0)) == []
    told = []
    for step in range(HEALTHY, HEALTHY + 8):
        told += step_with(job, step, 0.0 if step % 8 else 50.0, RATE * rate, norm=200.0)

    assert {alert.rule for alert in told} == {"exploding"}
    assert told[0].origin.step == HEALTHY
    assert told[0].origin.cause == expected


@pytest.mark.parametrize(
    ("factor", "beta2", "expected"),
    [
        (9.0, 0.95, "b.w: gradient 6.6 times AdamW's average of it at step 117"),
        (6.0, 0.95, ""),
        (9.0, None, ""),
    ],
)
def test_a_second_moment_that_was_behind_is_the_cause(
    factor: float, beta2: float | None, expected: str
) -> None:
    decays = None if beta2 is None else Column.pack("<f8", [beta2, beta2])
    job = Cluster(names=("a.w", "b.w"))
    job.open(0)
    job.declare(0, optimizer="AdamW", beta2=decays)
    random = np.random.default_rng(0)
    told = []
    for step in range(HEALTHY + 8):
        first, second, loss = np.exp(random.normal(0.0, (0.5, 0.5, 0.1))).tolist()
        is_behind, is_over = step == HEALTHY - 3, step >= HEALTHY
        norms = [first, second * (factor if is_behind else 1.0)]
        told += job.stats(0, step, norms, lr=RATE, loss=loss * (60.0 if is_over else 2.0))

    assert causes([alert for alert in told if alert.rule == "loss"])[0] == expected


@pytest.mark.parametrize(
    ("optimizer", "looks", "expected"),
    [
        ("SGD", 4, "gradients clipped from step 88 on: updates 0.45 of what is usual"),
        ("SGD", 3, ""),  # momentum may be behind
        ("Adam", 4, ""),
    ],
)
def test_gradients_that_were_clipped_for_long_are_the_cause(
    optimizer: str, looks: int, expected: str
) -> None:
    """The gradient has doubled, and the update has not."""
    job = Cluster(names=("a.w", "b.w"))
    job.open(0)
    job.declare(0, optimizer=optimizer)
    told = []
    for step in range(HEALTHY + 8):
        is_clipped, is_over = step >= HEALTHY - 8 * looks, step >= HEALTHY
        norm = 200.0 if is_over else 2.4 if is_clipped else 1.0
        told += step_with(job, step, 0.0 if step % 8 else 1.0, norm=norm)

    (cause,) = {
        each.origin.cause
        for each in told
        if each.rule == "exploding" and each.origin.step == HEALTHY and each.state == "firing"
    }
    assert cause == expected


def test_the_name_of_a_long_layer_is_cut_in_a_cause() -> None:
    job = Cluster(names=("a.w", "b" * 200)).start()
    for step in range(HEALTHY):
        step_with(job, step, 0.0 if step % 8 else 1e9 if step >= 104 else 1.0)
    told = [step_with(job, step, 0.0, norm=200.0) for step in range(HEALTHY, HEALTHY + 8)]
    (first, *_) = [alert for alerts in told for alert in alerts]

    assert len(first.origin.cause) == 80
    assert first.origin.cause.endswith(
        "its update 1e+09 times as large from step 104 on, same rate"
    )
