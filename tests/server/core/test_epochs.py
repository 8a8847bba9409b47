"""Steps that go back, jumps, and records that are late (S4, S6)."""

from __future__ import annotations

import math

import pytest

from gradwatch_wire.limits import MAX_STEP
from tests.server.core.test_saved_state import restart
from tests.support.core import Cluster

NAN = math.nan


@pytest.mark.parametrize("world", [1, 3])
def test_steps_that_go_back_are_a_new_epoch(world: int) -> None:
    """Training went on from a checkpoint: it is judged as before, in the order in which it came."""
    job = Cluster(world=world, names=("a",)).start()
    for step in (*range(5, 9), *range(6, 9)):
        job.step(step)

    assert job.closed == [5, 6, 7, 8, 6, 7, 8]
    (alert,) = job.step(9, NAN)
    assert (alert.first_step, job.health()["first_bad"]["step"]) == (9, 9)
    assert job.health()["records"]["late"] == 0


def test_the_same_step_of_another_epoch_is_another_alert() -> None:
    job = Cluster(names=("a",)).start()
    for _ in range(2):
        for step in range(6):
            job.step(step, NAN if step == 1 else 1.0)
    fired = [alert for alert in job.alerts if str(alert.state) == "firing"]

    assert [alert.first_step for alert in fired] == [1, 1]
    assert fired[0].id != fired[1].id


def test_one_rank_that_goes_back_does_not_make_the_others_late() -> None:
    job = Cluster(world=2, names=("a",)).start()
    for step in range(10):
        job.step(step)
    job.stats(1, 2)
    job.wait(5.5)
    job.stats(0, 10, NAN)
    (alert,) = job.wait(5.5)

    assert (alert.rule, alert.first_step) == ("nonfinite", 10)
    assert job.health()["records"]["late"] == 0


@pytest.mark.parametrize("world", [1, 2])
def test_a_jump_to_the_last_step_makes_nothing_late(world: int) -> None:
    """A number that is wrong once: those after it are judged."""
    job = Cluster(world=world, names=("a",)).start()
    job.step(0)
    job.stats(0, MAX_STEP)
    job.wait(6)
    for step in range(1, 5):
        job.step(step)
        job.wait(6)
    alerts = job.step(5, NAN)

    assert [alert.first_step for alert in alerts if alert.rule == "nonfinite"] == [5]
    assert job.closed[-5:] == [1, 2, 3, 4, 5]
    assert job.health()["step"] == 5


def test_what_a_wrong_step_carries_is_still_looked_at() -> None:
    """A NaN is a NaN at whatever step."""
    job = Cluster(world=2, names=("a",)).start()
    job.step(0)
    assert job.stats(0, MAX_STEP, NAN) == []
    (alert,) = job.stats(0, 1)

    assert (alert.rule, alert.first_step) == ("nonfinite", MAX_STEP)
    assert job.health()["records"]["late"] == 1


@pytest.mark.parametrize("confirmed_by", ["itself", "another rank"])
def test_a_far_jump_that_is_confirmed_is_no_mistake(confirmed_by: str) -> None:
    """Steps that count tokens; a run resumed at step two million."""
    job = Cluster(world=2, names=("a",)).start()
    far = 3 << 20
    if confirmed_by == "another rank":
        job.step(far)
        assert job.closed == [far]
    else:
        job.stats(0, far)
        job.stats(0, far + 1)
        job.stats(1, far + 1)
        job.step(far + 2)
        assert job.closed == [far, far + 1, far + 2]
    assert job.health()["records"]["late"] == 0


def test_late_records_are_looked_at_for_what_is_nonfinite() -> None:
    """S4: stored and counted; the earliest step is the first bad one."""
    job = Cluster(world=2, names=("a",)).start()
    job.stats(0, 0)
    job.wait(5.5)
    job.stats(0, 1, NAN)
    job.wait(5.5)
    assert job.health()["first_bad"]["step"] == 1

    job.stats(1, 0, [NAN])
    job.stats(1, 1, [2.0])

    assert job.health()["first_bad"]["step"] == 0
    assert job.health()["records"]["late"] == 2
    assert job.closed == [0, 1]


def test_a_late_nan_alone_is_an_alert() -> None:
    """S4: nothing else has shown it; finite late records neither raise nor clear anything."""
    job = Cluster(world=2, names=("a",)).start()
    for step in range(6):
        job.stats(0, step)
        job.wait(5.5)
    (alert,) = job.stats(1, 0, [NAN])

    assert (alert.rule, alert.first_step, str(alert.severity)) == ("nonfinite", 0, "critical")
    for step in range(1, 5):
        assert job.stats(1, step, [1.0]) == []
    firing = [alert["rule"] for alert in job.health()["alerts"]["items"]]
    assert firing.count("nonfinite") == 1


def test_frames_that_were_open_at_an_outage_wait_again() -> None:
    """S4: the slower rank's NaN is not late because the aggregator was away."""
    job = Cluster(world=2, names=("a",)).start()
    job.step(0)
    job.stats(0, 1)
    job.resume(after=60)
    assert job.wait(4.0) == []
    (alert,) = job.stats(1, 1, [NAN])

    assert (alert.rule, alert.first_step) == ("nonfinite", 1)
    assert (job.frame.coverage, job.health()["records"]["late"]) == (1.0, 0)


def test_a_restart_in_the_middle_of_it_changes_nothing() -> None:
    """Epochs and what is held come back."""
    job = Cluster(world=2, names=("a",)).start()
    for step in (0, 1, 2, 0, 1):
        job.step(step)
    job.stats(0, MAX_STEP, NAN)
    job.stats(1, 2, NAN)
    job.stats(0, 2)
    job.step(3)
    restart(job.entries)
