"""Bugs that look healthy: facts that no norm and no loss shows to be unusual."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.alerting.rules import Rules
from gradwatch_wire.names import Scalar
from tests.support.core import Cluster
from tests.support.whole_state import WholeState

NAMES = ("a.weight", "a.bias", "b.weight")


def norms(step: int, rank: int = 0) -> list[float]:
    random = np.random.default_rng([step, rank])
    found: list[float] = np.exp(random.normal(0.0, 0.2, len(NAMES))).tolist()
    return found


@pytest.fixture
def job() -> Any:
    """Two ranks under the rules as they are."""
    return Cluster(world=2, names=NAMES, state=WholeState(rules=Rules())).start()


def told(alerts: list[Any]) -> list[tuple[str, str, str]]:
    return [(each.rule, str(each.state), str(each.severity)) for each in alerts]


def test_a_learning_rate_of_0_is_info_and_a_warning_after_200_steps(job: Any) -> None:
    for step in range(20):
        assert job.step(step, norms(step), lr=1e-3) == []
    for step in range(20, 27):
        assert job.step(step, norms(step), lr=0.0) == []
    assert told(job.step(27, norms(27), lr=0.0)) == [("not_learning", "firing", "info")]
    alert = job.alerts[-1]
    assert (alert.origin.step, alert.origin.layer, alert.origin.rank) == (20, None, None)
    assert alert.message == "Learning rate 0 since step 20: the steps change no weight"
    for step in range(28, 220):
        assert job.step(step, norms(step), lr=0.0) == []
    assert told(job.step(220, norms(220), lr=0.0)) == [("not_learning", "firing", "warning")]
    over = [each for s in range(221, 224) for each in job.step(s, norms(s), lr=1e-3)]
    assert told(over) == [("not_learning", "resolved", "warning")]


def test_a_warm_up_from_0_is_not_told(job: Any) -> None:
    for step in range(100):
        assert job.step(step, norms(step), lr=1e-5 * step) == []


def test_a_step_that_was_not_taken_says_nothing_of_the_rate(job: Any) -> None:
    for step in range(40):
        skipped = step % 4 != 3
        labels = {"labels": {"taken": not skipped}}
        assert job.step(step, norms(step), lr=1e-3 if not skipped else 0.0, **labels) == []


def test_norms_that_are_equal_bit_for_bit_are_told(job: Any) -> None:
    for step in range(10):
        assert job.step(step, norms(step)) == []
    for step in range(10, 13):
        assert job.step(step, norms(9)) == []
    assert told(job.step(13, norms(9))) == [("repeated_gradient", "firing", "info")]
    assert job.alerts[-1].origin.step == 10
    found = [each for step in range(14, 31) for each in job.step(step, norms(9))]
    assert told(found) == [("repeated_gradient", "firing", "warning")]
    assert job.alerts[-1].message.startswith("Gradients repeat since step 10: every norm is")


def test_what_the_job_expects_stays_info() -> None:
    job = Cluster(names=NAMES, state=WholeState(rules=Rules()))
    job.open(0, expected=("not_zeroed", "unheard_of"))
    job.declare(0)
    for step in range(60):
        job.stats(0, step, norms(step), labels={"carried": True})

    assert told(job.alerts) == [("not_zeroed", "firing", "info")]


def test_gradients_that_were_carried_over_are_told(job: Any) -> None:
    for step in range(33):
        labels = {"carried": True} if step >= 10 else {}
        found = [
            alert
            for rank in range(2)
            for alert in job.stats(rank, step, norms(step), labels=labels if rank else {})
        ]
        assert told(found) == {
            13: [("not_zeroed", "firing", "info")],
            30: [("not_zeroed", "firing", "warning")],
        }.get(step, [])
    assert job.alerts[-1].origin.step == 10
    assert job.alerts[-1].message.startswith("Gradients not zeroed since step 10: each step adds")


def test_one_bit_of_one_layer_is_another_gradient(job: Any) -> None:
    same = norms(0)
    for step in range(40):
        other = float(np.nextafter(same[1], 2.0)) if step % 2 else same[1]
        assert job.step(step, [same[0], other, same[2]]) == []


def test_gradients_that_are_zero_or_not_finite_are_for_other_rules(job: Any) -> None:
    found = [each for step in range(40) for each in job.step(step, [0.0, 0.0, 0.0])]
    found += [each for step in range(40, 60) for each in job.step(step, [1.0, np.nan, 1.0])]
    found += [each for step in range(60, 80) for each in job.step(step, [np.inf] * 3)]

    assert "repeated_gradient" not in {each.rule for each in found}


PROBES = {"labels": {"reduction": "mean"}}


def step_of_both(job: Any, step: int, probes: tuple[float, float], **changes: Any) -> list[Any]:
    losses = changes.pop("losses", (0.5, 0.5))
    found = []
    for rank in range(2):
        scalars = {Scalar.LOCAL_PROBE: probes[rank], Scalar.LOSS: losses[rank]}
        found += job.stats(rank, step, norms(step), scalars=scalars, **(PROBES | changes))
    return found


def test_one_batch_on_all_ranks_is_told_after_8_steps_and_matters_after_20(job: Any) -> None:
    for step in range(7):
        assert step_of_both(job, step, (0.1 + step, 0.1 + step)) == []
    assert told(step_of_both(job, 7, (0.7, 0.7))) == [("same_batch", "firing", "info")]
    alert = job.alerts[-1]
    assert (alert.origin.step, alert.origin.rank, alert.origin.ranks) == (0, None, (0, 1))
    found = [each for step in range(8, 22) for each in step_of_both(job, step, (0.3, 0.3))]
    assert told(found) == [("same_batch", "firing", "warning")]
    assert job.alerts[-1].message.startswith("Same batch on all ranks since step 0: ")


@pytest.mark.parametrize(
    ("probes", "changes"),
    [
        ((0.1, 0.2), {}),
        ((0.1, 0.1), {"losses": (0.5, 0.6)}),
        ((0.0, 0.0), {}),  # of float64 ones it says only whether they are finite
        ((0.1, 0.1), {"labels": {"reduction": "unknown"}}),  # ranks that may split a model
    ],
)
def test_other_batches_and_what_cannot_be_compared_are_not_told(
    job: Any, probes: tuple[float, float], changes: dict[str, Any]
) -> None:
    for step in range(40):
        assert step_of_both(job, step, probes, **changes) == []


def test_ranks_that_hold_shards_are_not_compared() -> None:
    """Those of a model that is split may have one batch by design."""
    job = Cluster(world=2, names=NAMES, state=WholeState(rules=Rules()))
    for rank in range(2):
        job.open(rank)
        job.declare(rank, shards=(f"Shard(0) {rank}/2",) * len(NAMES))
    for step in range(40):
        assert step_of_both(job, step, (0.1, 0.1)) == []


def test_a_layer_without_a_gradient_is_not_another_one(job: Any) -> None:
    job.step(0, norms(0))
    for rank in range(2):
        job.declare(rank, names=NAMES[:2])
    found = [each for step in range(1, 20) for each in job.step(step, norms(1)[:2])]

    assert told(found) == [("repeated_gradient", "firing", "info")]


@pytest.mark.parametrize("num_sent", [1, 2])
def test_a_step_that_a_rank_has_not_sent_is_not_compared(num_sent: int) -> None:
    job = Cluster(world=3, names=NAMES, state=WholeState(rules=Rules())).start()
    for step in range(40):
        scalars = {Scalar.LOCAL_PROBE: 0.1, Scalar.LOSS: 0.5}
        for rank in range(num_sent):
            job.stats(rank, step, norms(step), scalars=scalars, **PROBES)
        job.wait(5)

    assert job.frame.coverage < 1.0
    assert "same_batch" not in {each.rule for each in job.alerts}


def test_probes_that_are_infinite_are_of_no_batch(job: Any) -> None:
    found = []
    for step in range(40):
        for rank in range(2):
            scalars = {Scalar.LOCAL_PROBE: np.inf}
            found += job.stats(rank, step, [1.0, np.inf, 1.0], scalars=scalars, **PROBES)

    assert "same_batch" not in {each.rule for each in found}


def test_a_single_frame_between_keeps_the_first_step_and_more_do_not(job: Any) -> None:
    for step in range(40):
        job.step(step, norms(step), lr=1e-3 if step in (5, 20, 21, 22) else 0.0)
    first, *_, last = (each for each in job.alerts if str(each.state) == "firing")

    assert (first.origin.step, last.origin.step) == (0, 23)


def test_one_rank_has_no_other_to_be_like() -> None:
    alone = Cluster(world=1, names=NAMES, state=WholeState(rules=Rules())).start()
    for step in range(40):
        scalars = {Scalar.LOCAL_PROBE: 0.1, Scalar.LOSS: 0.5}
        assert alone.stats(0, step, norms(step), scalars=scalars, **PROBES) == []


def test_no_batch_is_to_blame(job: Any) -> None:
    for step in range(30):
        for rank in range(2):
            job.stats(rank, step, norms(step), labels={"carried": True}, batch=f"{step}")

    assert [alert.origin.batch for alert in job.alerts] == ["", ""]
    assert {alert.origin.last_good_step for alert in job.alerts} == {None}
