"""Knowledge of the attempt before, where training goes on from its checkpoint."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwatch_server.core.state_codec import encode
from tests.server.core.test_saved_state import restart
from tests.support.core import Cluster

NAMES = ("a.weight", "b.weight")


def usual(step: int, a: float = 1.0, b: float = 4.0) -> list[float]:
    wave = 1.0 + 0.02 * math.sin(7.3 * step * step)
    return [a * wave, b * wave]


def train(job: Any, steps: range, **sizes: float) -> Any:
    for step in steps:
        job.step(step, usual(step, **sizes), loss=2.0)
    return job


def stopped(cluster: Any, at: int = 100, **settings: Any) -> Any:
    """A job that was killed after so many steps."""
    job = train(cluster(names=NAMES, **settings).start(job="one"), range(at))
    for rank in range(job.world):
        job.lose(rank)
    return job


def spikes(job: Any, attempt: int = 2) -> list[Any]:
    return [a for a in job.alerts if (a.rule, a.attempt) == ("exploding", attempt)]


@pytest.mark.parametrize("first", [1, 50, 90, 100, 103, 198])
def test_an_attempt_that_goes_on_is_judged_from_its_first_frames(first: int) -> None:
    job = train(stopped(Cluster).start(job="two"), range(first, first + 4))
    assert not spikes(job)
    train(job, range(first + 4, first + 8), a=20.0)

    known = first >= 50
    assert bool(spikes(job)) == known
    if known:
        origin = spikes(job)[0].origin
        assert (origin.layer, origin.step) == ("a.weight", first + 4)


@pytest.mark.parametrize("change", ["step 0", "another layer", "a layer less", "another world"])
def test_another_training_learns_anew(change: str) -> None:
    job = stopped(Cluster)
    if change == "another world":
        job.world = 2
    elif change == "another layer":
        job.names = ("a.weight", "c.weight")
    elif change == "a layer less":
        job.names = ("b.weight", "a.weight", "a.bias")
    job.start(job="two")
    first = 0 if change == "step 0" else 100
    for step in range(first, first + 8):
        size = [1.0, 4.0, 1.0][: len(job.names)]
        job.step(step, size if step < first + 4 else [20.0 * own for own in size], loss=2.0)

    assert not spikes(job)


def test_layers_may_be_declared_in_another_order() -> None:
    job = stopped(Cluster)
    job.names = NAMES[::-1]
    job.start(job="two")
    for step in range(100, 140):
        job.step(step, usual(step)[::-1], loss=2.0)
    assert not spikes(job)
    job.step(140, [4.0, 20.0], loss=2.0)

    assert spikes(job)[0].origin.layer == "a.weight"


def test_an_attempt_that_ended_before_its_first_frame_changes_nothing() -> None:
    job = stopped(Cluster)
    job.start(job="two")
    job.lose(0)
    job.start(job="three")
    train(job, range(98, 102))
    train(job, range(102, 106), a=20.0)

    assert spikes(job, attempt=3)


def test_the_attempt_before_is_not_changed_by_it() -> None:
    job = train(Cluster(names=NAMES).start(job="one"), range(60))
    before = encode(job.attempt.closed.judge)
    first = job.attempt
    train(job.start(job="two"), range(60, 90), a=5.0)

    assert job.attempt is not first
    assert first.lives
    assert encode(first.closed.judge) == before


@pytest.mark.parametrize(
    ("zero_before", "first", "zero_from", "warned_at"),
    [
        (range(101), 101, 101, 201),
        (range(101), 0, 0, 200),  # another training
        (range(0), 101, 101, 301),
        (range(50), 101, 101, 301),  # it was over before the job stopped
        (range(101), 101, 105, 305),  # it was over when the job went on
    ],
)
def test_a_rate_of_0_is_counted_on_where_the_job_is_resumed(
    zero_before: range, first: int, zero_from: int, warned_at: int
) -> None:
    job = Cluster(names=NAMES).start(job="one")
    for step in range(101):
        job.step(step, usual(step), lr=0.0 if step in zero_before else 1e-3)
    job.lose(0)
    job.start(job="two")
    for step in range(first, 310):
        job.step(step, usual(step), lr=0.0 if step >= zero_from else 1e-3)
    warned = [a for a in job.alerts if a.rule == "not_learning" and a.severity == "warning"]

    assert [a.attempt for a in warned] == [2]
    assert (warned[0].last_step, warned[0].origin.step) == (warned_at, zero_from)


@pytest.mark.slow
def test_a_restart_at_any_place_changes_nothing() -> None:
    job = stopped(Cluster, 50, world=2)
    job.start(job="two")
    train(job, range(48, 52))
    train(job, range(52, 56), a=20.0)
    assert spikes(job)
    restart(job.entries, first=100)
