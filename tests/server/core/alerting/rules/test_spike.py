"""Spikes: at once, lasting or with the loss; half of one is info; and when it is over."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.support.core import Cluster

HEALTHY = 300


@pytest.fixture
def job() -> Any:
    """A run of three modules that was healthy for 300 steps; `job.next()` is a further one."""
    made: Any = Cluster(names=("a.w", "a.b", "b.w", "c.w")).start()
    random = np.random.default_rng(0)
    noise: Iterator[Any] = iter(np.exp(random.normal(0.0, 0.1, (2_000, 4))))
    steps = iter(range(2_000))

    def go(factors: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0), loss: float = 1.0) -> list[Any]:
        own = next(noise)
        told: list[Any] = made.step(
            next(steps), (own * factors).tolist(), loss=loss * float(own[0]) ** 0.1
        )
        return [(alert.rule, alert.state.value, alert.severity.value) for alert in told]

    for _ in range(HEALTHY):
        assert go() == []
    made.next = go
    return made


def test_a_norm_far_over_the_largest_of_late_is_a_spike_at_once(job: Any) -> None:
    assert job.next((1.0, 1.0, 8.0, 1.0)) == [("spike", "firing", "warning")]
    origin = job.alerts[-1].origin

    assert (origin.step, origin.layer, origin.rank) == (HEALTHY, "b.w", 0)
    assert origin.usual == pytest.approx(1.0, rel=0.1)
    assert origin.value == pytest.approx(8.0, rel=0.3)
    assert origin.deviations > 10
    assert "1 of 3 modules" in origin.notes


def test_the_layer_inside_the_module_is_the_one_that_grew(job: Any) -> None:
    """The bias, though its weight is larger still."""
    job.next((1.0, 9.0, 1.0, 1.0))

    assert job.alerts[-1].origin.layer == "a.b"


def test_a_threefold_norm_is_a_spike_where_it_lasts(job: Any) -> None:
    told = [job.next((1.0, 1.0, 4.2, 1.0)) for _ in range(3)]

    assert told[0] in ([], [("spike", "firing", "info")])
    assert told[2] == [("spike", "firing", "warning")]
    assert job.alerts[0].origin.layer == "b.w"


def test_a_threefold_norm_is_a_spike_with_the_loss(job: Any) -> None:
    told = job.next((3.8, 3.8, 3.8, 3.8), loss=3.0)

    assert ("spike", "firing", "warning") in told


def test_a_single_doubled_norm_is_nothing(job: Any) -> None:
    assert job.next((1.8, 1.8, 1.8, 1.8)) == []
    assert job.next((1e-4, 1e-4, 1.0, 1.0)) == []
    assert job.next((0.0, 0.0, 1.0, 1.0)) == []


@pytest.mark.slow
def test_a_spike_that_stays_is_critical_and_ends_at_the_new_level(job: Any) -> None:
    told = [job.next((1.0, 1.0, 30.0, 1.0)) for _ in range(300)]

    assert told[0] == [("spike", "firing", "warning")]
    assert told[3] == [("spike", "firing", "critical")]
    later = [event for events in told[4:] for event in events if event[1] != "firing"]
    assert later == [("spike", "resolved", "critical")]


def test_a_spike_is_over_when_the_norm_is_back(job: Any) -> None:
    job.next((1.0, 1.0, 30.0, 1.0))
    told = [job.next() for _ in range(20)]

    assert [step for step, events in enumerate(told) if events] == [15]
    assert told[15] == [("spike", "resolved", "warning")]


def test_a_second_spike_is_not_hidden_by_the_first(job: Any) -> None:
    told = []
    for factor in (100.0, 100.0, 300.0):
        told.append(job.next((1.0, 1.0, factor, 1.0)))
        for _ in range(20):
            job.next()

    assert [events[0][1:] for events in told] == [
        ("firing", "warning"),
        ("firing", "info"),
        ("firing", "warning"),
    ]


def test_without_a_history_nothing_is_a_spike() -> None:
    """The first 32 steps only teach."""
    job = Cluster(names=("a",)).start()
    for step in range(31):
        assert job.step(step, [1.0 if step < 30 else 50.0]) == []


def test_a_layer_that_was_always_large_does_not_explode() -> None:
    """S12: a summed loss is a scale: info while there is no history, and then nothing."""
    job = Cluster(names=("a", "b")).start()
    random = np.random.default_rng(1)
    for step in range(200):
        job.step(step, (5_000.0 * np.exp(random.normal(0.0, 0.1, 2))).tolist())

    assert {alert.severity.value for alert in job.alerts} == {"info"}
    assert job.health()["status"] == "healthy"
    assert job.health()["has_exploding"] is False
    job.step(200, [5e6, 5e3])
    assert (job.alerts[-1].rule, job.alerts[-1].severity.value) == ("exploding", "warning")


@pytest.mark.parametrize("healthy", [2, 100])
def test_a_jump_past_the_limit_explodes(healthy: int) -> None:
    job = Cluster(names=("a", "b")).start()
    for step in range(healthy):
        job.step(step, [1.0, 1.0])
    told = [job.step(healthy + more, [500.0, 1.0]) for more in range(4)]

    assert [(a.rule, a.severity.value) for a in told[0]] == [("exploding", "warning")]
    assert [a.severity.value for a in told[3]] == ["critical"]
    assert told[0][0].origin.layer == "a"


def test_a_loss_that_stays_high_is_told() -> None:
    job = Cluster(names=("a",)).start()
    random = np.random.default_rng(2)
    for step in range(60):
        job.step(step, [1.0], loss=float(np.exp(random.normal(0.0, 0.1))))
    told = [job.step(60 + more, [1.0], loss=3.0) for more in range(2)]

    assert told[0] == []
    assert [(a.rule, a.severity.value) for a in told[1]] == [("loss", "warning")]


def test_a_loss_that_is_not_finite_is_critical() -> None:
    """S7: though all gradients are finite; with a gradient that is not, `nonfinite` tells it."""
    job = Cluster(names=("a",)).start()
    job.step(0, [1.0], loss=2.0)
    told = job.step(1, [1.0], loss=math.nan)

    assert [(a.rule, a.severity.value, a.origin.rank) for a in told] == [("loss", "critical", 0)]
    job = Cluster(names=("a",)).start()
    assert [a.rule for a in job.step(0, [math.nan], loss=math.nan)] == ["nonfinite"]


@pytest.mark.slow
def test_what_came_and_went_is_info_when_it_comes_again(job: Any) -> None:
    """A jump every 40 steps, as copies of a target network make; a larger one is a warning."""
    told = []
    for factor in (20.0, 30.0, 22.0, 18.0, 200.0):
        told.append([severity for _, _, severity in job.next((1.0, 1.0, factor, 1.0))])
        for _ in range(39):
            job.next()

    assert told == [["warning"], ["info"], ["info"], ["info"], ["warning"]]


@pytest.mark.slow
def test_what_went_along_may_come_first_the_next_time(job: Any) -> None:
    """A visit is one of all modules."""
    for factors in ((3.0, 3.0, 20.0, 3.0), (5.0, 5.0, 20.0, 5.0)):
        told = job.next(factors)
        for _ in range(39):
            job.next()

    assert [severity for _, _, severity in told] == ["info"]


@pytest.mark.slow
def test_what_comes_again_and_stays_is_no_visit(job: Any) -> None:
    job.next((1.0, 1.0, 30.0, 1.0))
    for _ in range(39):
        job.next()
    told = [job.next((1.0, 1.0, 30.0, 1.0)) for _ in range(40)]

    assert next((i, event[2]) for i, events in enumerate(told) for event in events) == (0, "info")
    assert told[-1] == []
    assert job.alerts[-1].severity.value == "critical"
    assert 32 <= [i for i, events in enumerate(told) if events][-1] < 40


@pytest.mark.parametrize("healthy", [100, 300])
def test_a_spike_that_lasts_counts_once_what_is_usual_is_known(healthy: int) -> None:
    job = Cluster(names=("a",)).start()
    random = np.random.default_rng(4)
    for step in range(healthy):
        job.step(step, float(np.exp(random.normal(0.0, 0.1))))
    told = [alert for more in range(4) for alert in job.step(healthy + more, 3.8)]

    assert told[-1].severity.value == ("warning" if healthy > 256 else "info")


def test_half_a_spike_with_a_loss_that_leaves_its_level_is_a_warning(job: Any) -> None:
    told = []
    for _ in range(16):
        told += job.next((1.0, 1.0, 2.6, 1.0), loss=1.2)

    assert told[0] == ("spike", "firing", "info")
    assert ("spike", "firing", "warning") in told


def test_of_several_modules_that_jump_at_once_none_is_named(job: Any) -> None:
    """Bad data, say, or a damaged weight: it may have begun in any. The farthest off is told."""
    job.next((12.0, 12.0, 20.0, 12.0))
    alert = job.alerts[-1]

    assert (alert.origin.layer, alert.num_layers) == (None, 4)
    assert alert.origin.detail == "farthest off is b.w"
    assert alert.origin.value == pytest.approx(20.0, rel=0.4)
    assert [value for _, value in alert.origin.before] == pytest.approx([1.0] * 5, rel=0.4)
    assert "gradient norm of several modules (farthest off is b.w) is" in alert.message
    assert ", 4 layers: a.w, a.b, b.w, …" in alert.message


def test_one_that_stands_out_among_them_is_named(job: Any) -> None:
    job.next((1.0, 1.0, 60.0, 3.0))
    origin = job.alerts[-1].origin

    assert (origin.layer, origin.step) == ("b.w", HEALTHY)


def test_a_slow_rise_is_dated_to_where_it_left_its_level(job: Any) -> None:
    told: list[Any] = []
    while not told:
        told = job.next((1.0, 1.0, 1.15 ** max(0, job.closed[-1] - HEALTHY), 1.0))
    alert = job.alerts[0]

    assert alert.origin.layer == "b.w"
    assert HEALTHY - 4 <= alert.origin.step <= HEALTHY + 4 < alert.last_step
    assert any(note.startswith("began about step") for note in alert.origin.notes)
    assert all(step < alert.origin.step for step, _ in alert.origin.before)
    assert f", beginning at step {alert.origin.step} on rank 0" in alert.message


@pytest.mark.slow
def test_a_jump_after_a_slow_creep_is_dated_to_the_jump(job: Any) -> None:
    """Norms that grew by a half in 200 steps are no beginning of what happens at once."""
    for step in range(200):
        assert job.next((1.0, 1.0, 1.002**step, 1.0)) == []
    jump = job.closed[-1] + 1
    job.next((1.0, 1.0, 15.0, 1.0))

    assert (job.alerts[-1].origin.layer, job.alerts[-1].origin.step) == ("b.w", jump)
