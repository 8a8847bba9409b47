"""Single frames that are hard again for a model that has solved its task."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.core import Cluster

SOLVED_AT, HEALTHY = 60, 300


@pytest.fixture
def job() -> Any:
    """A run whose loss fell from 2 to 0.01, and norms from 1; `job.next()` is a further step."""
    made: Any = Cluster(names=("a.w", "b.w", "c.w")).start()
    random = np.random.default_rng(0)
    steps = iter(range(4_000))

    def go(norm: float = 0.01, loss: float = 0.01) -> list[Any]:
        norms = norm * np.exp(random.normal(0.0, 0.2, 3))
        made_of = loss * float(np.exp(random.normal(0.0, 0.1)))
        told: list[Any] = made.step(next(steps), norms.tolist(), loss=made_of, lr=0.1)
        return told

    for step in range(HEALTHY):
        share = max(0.0, 1.0 - step / SOLVED_AT)
        go(0.01 + 0.99 * share, 0.01 + 1.99 * share)
    assert made.alerts == []
    made.next = go
    return made


def test_a_hard_sample_is_no_alert(job: Any) -> None:
    assert job.next(0.5, 0.8) == []
    assert [job.next() for _ in range(32)] == [[]] * 32


def test_harder_than_at_first_is_told_at_once(job: Any) -> None:
    norms = job.next(5.0, 0.8)[0]
    assert (norms.rule, norms.origin.step, norms.fired_step) == ("exploding", HEALTHY, HEALTHY)


def test_a_loss_above_the_first_is_told_at_once(job: Any) -> None:
    assert {alert.fired_step for alert in job.next(0.5, 4.0)} == {HEALTHY}


def test_what_stays_hard_is_told_within_four_frames(job: Any) -> None:
    told = [alert for _ in range(4) for alert in job.next(0.5, 0.8)]

    assert "warning" in {alert.severity.value for alert in told}
    assert {alert.origin.step for alert in told} == {HEALTHY}
