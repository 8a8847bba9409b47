"""A loss that leaves its level by little, and what the learning rate has to do with it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.support.core import Cluster

HEALTHY = 300


@pytest.fixture
def job() -> Any:
    """A run that was healthy for 300 steps; `job.next()` is a further one."""
    made: Any = Cluster(names=("a.w",)).start()
    random = np.random.default_rng(0)
    steps = iter(range(4_000))

    def go(factor: float = 1.0, lr: float = 0.1) -> list[Any]:
        loss = 2.0 * factor * float(np.exp(random.normal(0.0, 0.1)))
        told: list[Any] = made.step(next(steps), [1.0], loss=loss, lr=lr)
        return told

    for _ in range(HEALTHY):
        assert go() == []
    made.next = go
    return made


@pytest.mark.slow
def test_a_loss_that_rises_by_a_third_for_good_is_told_once(job: Any) -> None:
    told = [alert for _ in range(200) for alert in job.next(1.3)]

    assert [(a.rule, a.state.value, a.severity.value) for a in told] == [
        ("loss", "firing", "warning"),
        ("loss", "resolved", "warning"),
    ]
    origin = told[0].origin
    assert abs(origin.step - HEALTHY) <= 2
    assert told[0].fired_step < HEALTHY + 32
    assert (origin.value, origin.usual) == pytest.approx((2.6, 2.0), rel=0.1)
    assert told[0].message.startswith(
        f"Loss up since step {origin.step} on rank 0: mean of 16 frames "
    )


@pytest.mark.slow
def test_a_restart_of_the_learning_rate_raises_nothing(job: Any) -> None:
    """The loss goes up with it by a half, and comes down."""
    for step in range(300):
        assert job.next(1.0, lr=0.1 * (1.0 - step / 301)) == []
    for step in range(300):
        assert job.next(1.0 + 0.5 * (1.0 - step / 300) ** 2, lr=0.1) == []


def test_a_rise_after_a_rate_that_never_was_is_told_soon(job: Any) -> None:
    """Thirty times any before; a rise by a sixth is enough then, and told 16 frames later."""
    told = [alert for _ in range(24) for alert in job.next(1.17, lr=3.0)]

    assert [(a.rule, a.severity.value) for a in told] == [("loss", "warning")]


@pytest.mark.slow
def test_a_rate_that_does_no_harm_raises_nothing(job: Any) -> None:
    for _ in range(200):
        assert job.next(1.0, lr=3.0) == []


@pytest.mark.parametrize(("budget", "rules"), [(0.01, []), (1000.0, ["loss"])])
def test_a_budget_of_false_alerts_sets_the_margins(
    job: Any, budget: float, rules: list[str]
) -> None:
    """Three times the usual loss, of which the logarithm varies by 0.1."""
    job.rules(false_alerts_per_100k_steps=budget)
    told = [alert for _ in range(2) for alert in job.next(3.0)]

    assert [alert.rule for alert in told] == rules


def test_a_loss_that_is_bad_in_the_first_frame_is_critical() -> None:
    (alert,) = Cluster().start().step(0, loss=math.nan)

    assert (alert.rule, alert.severity, alert.origin.step) == ("loss", "critical", 0)
