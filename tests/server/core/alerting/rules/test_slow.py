"""Runs that go on more slowly than before."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.core import Cluster

HEALTHY = 120
USUAL_S = 0.2


def step_time(factor: float, step: int) -> float:
    return factor * USUAL_S * float(np.exp(np.random.default_rng(step).normal(0.0, 0.1)))


@pytest.fixture
def job() -> Cluster:
    """A job that was as quick as ever for 120 steps."""
    made = Cluster(names=("a.w",), world=2).start()
    for step in range(HEALTHY):
        assert made.step(step, [1.0], step_time_s=step_time(1.0, step)) == []
    return made


def test_steps_that_take_five_times_as_long_are_told_once_and_until_they_do_not(
    job: Cluster,
) -> None:
    slow = range(HEALTHY, HEALTHY + 60)
    told = [each for s in slow for each in job.step(s, [1.0], step_time_s=step_time(5.0, s))]

    (alert,) = told
    assert (alert.rule, alert.severity.value) == ("slow", "warning")
    assert (alert.origin.step, alert.origin.layer, alert.origin.rank) == (HEALTHY, None, None)
    assert alert.fired_step < HEALTHY + 16
    assert alert.origin.usual == pytest.approx(USUAL_S, rel=0.1)
    assert alert.message.startswith(f"Slow since step {alert.origin.step}: ")
    quick = range(HEALTHY + 60, HEALTHY + 120)
    over = [each for s in quick for each in job.step(s, [1.0], step_time_s=step_time(1.0, s))]
    assert [(each.id, each.state.value) for each in over] == [(alert.id, "resolved")]


def test_a_checkpoint_now_and_then_is_not_slow(job: Cluster) -> None:
    for step in range(HEALTHY, HEALTHY + 120):
        factor = 100.0 if step % 40 == 0 else 1.0
        assert job.step(step, [1.0], step_time_s=step_time(factor, step)) == []
