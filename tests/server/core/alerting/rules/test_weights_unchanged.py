"""Weights that do not change though they have a gradient: of layers, and of all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.alerting.rules import Rules
from gradwatch_wire import Column
from gradwatch_wire.columns import UNCHANGED, UPDATE_RMS, WEIGHT_RMS
from tests.support.core import Cluster
from tests.support.whole_state import WholeState

NAMES = ("a.weight", "a.bias", "head.weight")
NAN = float("nan")


@pytest.fixture
def job() -> Any:
    """One rank under the rules as they are."""
    return Cluster(names=NAMES, state=WholeState(rules=Rules())).start()


def step_of(job: Any, step: int, *unchanged: float, **changes: Any) -> list[Any]:
    """A step, one of eight with the columns of the update."""
    random = np.random.default_rng(step)
    if step % 8 == 0 and unchanged:
        update = [0.0 if share == 1.0 else 1e-4 for share in unchanged]
        changes |= {UNCHANGED: unchanged, UPDATE_RMS: update, WEIGHT_RMS: [0.1] * len(unchanged)}
    norms = changes.pop("l2", np.exp(random.normal(0.0, 0.2, len(NAMES))).tolist())
    found: list[Any] = job.stats(0, step, norms, **({"lr": 1e-3} | changes))
    return found


def told(alerts: list[Any]) -> list[tuple[str, str, str]]:
    return [(each.rule, str(each.state), str(each.severity)) for each in alerts]


def test_a_layer_that_stays_is_info_after_4_looks_and_a_warning_after_200_steps(job: Any) -> None:
    for step in range(64):
        assert step_of(job, step, 0.1, 0.0, 0.0) == []
    for step in range(64, 88):
        assert step_of(job, step, 0.1, 0.0, 1.0) == []
    assert told(step_of(job, 88, 0.1, 0.0, 1.0)) == [("weights_unchanged", "firing", "info")]
    alert = job.alerts[-1]
    assert (alert.origin.step, alert.origin.layer, alert.origin.rank) == (64, "head.weight", 0)
    assert alert.message.startswith("Weights unchanged since step 64: head.weight, though")
    found = [each for s in range(89, 266) for each in step_of(job, s, 0.1, 0.0, 1.0)]
    assert told(found) == [("weights_unchanged", "firing", "warning")]
    found = [each for s in range(266, 300) for each in step_of(job, s, 0.1, 0.0, 0.5)]
    assert told(found) == [("weights_unchanged", "resolved", "warning")]


def test_weights_that_move_between_two_looks_are_not_unchanged(job: Any) -> None:
    """As bfloat16 that rounds an update away in some steps: the size of the weights tells."""
    random = np.random.default_rng(0)
    for step in range(400):
        size = 0.1 + 0.001 * float(random.integers(3)) if step >= 100 else 0.1 + 1e-6 * step
        columns = {UNCHANGED: [0.1, 0.0, 1.0], UPDATE_RMS: [1e-4, 1e-4, 0.0]}
        looked = columns | {WEIGHT_RMS: [0.1, 0.1, size]} if step % 8 == 0 else {}
        assert step_of(job, step, **looked) == [] or step >= 100
    assert [each.severity for each in job.alerts if each.severity != "info"] == []


def test_weights_that_moved_once_are_unchanged_since_then(job: Any) -> None:
    warned = []
    for step in range(260):
        size = 0.1 if step < 40 else 0.2
        columns = {UNCHANGED: [0.1, 0.0, 1.0], UPDATE_RMS: [1e-4, 1e-4, 0.0]}
        looked = columns | {WEIGHT_RMS: [0.1, 0.1, size]} if step % 8 == 0 else {}
        warned += [step for each in step_of(job, step, **looked) if each.severity == "warning"]

    assert warned == [240]  # 200 steps after they moved


def test_all_layers_are_told_at_once_without_one_to_blame(job: Any) -> None:
    found = [each for step in range(32) for each in step_of(job, step, 1.0, 1.0, 1.0)]

    assert told(found) == [("weights_unchanged", "firing", "info")]
    assert (job.alerts[-1].origin.step, job.alerts[-1].origin.layer) == (0, None)
    assert "3 layers" in job.alerts[-1].message


@pytest.mark.parametrize(
    ("unchanged", "changes"),
    [
        ((0.9999, 0.0, 0.0), {}),  # one element of the sample is enough
        ((NAN, 0.0, 0.0), {}),  # an embedding whose rows were not used
        ((1.0, 1.0, 1.0), {"l2": [0.0, 0.0, 0.0]}),  # for other rules
        ((1.0, 1.0, 1.0), {"l2": [1e-7] * 3}),  # likewise, in plain SGD: vanishing, or converged
        ((1.0, 1.0, 1.0), {"lr": 1e-10}),  # lost in any float32: schedules end so
        ((1.0, 1.0, 1.0), {"labels": {"taken": False}}),
        ((1.0, 1.0, 1.0), {"lr": 1e-10, "l2": [1.7e308] * 3}),
        ((), {}),
    ],
)
def test_what_may_well_stay_is_not_told(
    job: Any, unchanged: tuple[float, ...], changes: dict[str, Any]
) -> None:
    found = [each for step in range(300) for each in step_of(job, step, *unchanged, **changes)]

    assert "weights_unchanged" not in {each.rule for each in found}


def test_an_unknown_learning_rate_says_nothing(job: Any) -> None:
    for step in range(0, 320, 8):
        columns = {UNCHANGED: [1.0] * 3, UPDATE_RMS: [0.0] * 3, WEIGHT_RMS: [0.1] * 3}
        assert job.stats(0, step, [1.0, 2.0, 1.0 + step / 1e4], **columns) == []


def test_a_learning_rate_of_0_is_told_by_its_own_rule_alone(job: Any) -> None:
    found = [each for step in range(300) for each in step_of(job, step, 1.0, 1.0, 1.0, lr=0.0)]

    assert {each.rule for each in found} == {"not_learning"}


def test_a_layer_that_is_left_out_makes_no_other_one_matter() -> None:
    job = Cluster(names=NAMES, state=WholeState(rules=Rules())).start()
    job.rules(weights_unchanged={"layers": ["!a.*"]})
    found = [
        each
        for step in range(400)
        for each in step_of(job, step, 1.0, 0.0, 1.0 if step >= 320 else 0.0)
    ]

    assert told(found) == [("weights_unchanged", "firing", "info")]


def test_a_group_that_is_still_on_purpose_stays_info() -> None:
    job = Cluster(names=NAMES, state=WholeState(rules=Rules()))
    job.open(0, expected=("weights_unchanged",))
    job.declare(0)
    found = [each for step in range(300) for each in step_of(job, step, 1.0, 0.0, 0.0)]

    assert told(found) == [("weights_unchanged", "firing", "info")]


@pytest.mark.parametrize(
    ("dtype", "numel", "lr", "severity"),
    [
        ("bfloat16", 1 << 16, 1e-4, "info"),  # less than half of the step between two numbers
        ("bfloat16", 1 << 16, 1e-2, "warning"),
        ("bfloat16", (1 << 16) + 1, 1e-4, "warning"),  # of a matrix some would move
        ("float16", 64, 4e-5, "info"),
        ("float16", 64, 1e-4, "warning"),
        ("float32", 64, 1e-4, "warning"),
    ],
)
def test_a_bias_that_is_too_coarse_for_its_updates_stays_info(
    dtype: str, numel: int, lr: float, severity: str
) -> None:
    job = Cluster(names=NAMES, state=WholeState(rules=Rules()))
    job.open(0)
    job.declare(0, dtypes=(dtype,) * 3, numel=Column.pack("<u8", [numel] * 3))
    norms = [float(numel) ** 0.5] * 3
    found = [
        each
        for step in range(300)
        for each in step_of(job, step, 0.5, 1.0, 0.5, lr=lr, l2=[norms[0] + step, *norms[1:]])
    ]

    assert [each.severity for each in found][-1] == severity


def test_a_matrix_beside_a_coarse_bias_is_a_warning() -> None:
    job = Cluster(names=NAMES, state=WholeState(rules=Rules()))
    job.open(0)
    sizes = Column.pack("<u8", [1 << 20, 64, 64])
    job.declare(0, dtypes=("bfloat16",) * 3, numel=sizes)
    norms = [1024.0, 8.0, 8.0]
    for step in range(300):
        step_of(job, step, 1.0, 1.0, 0.5, lr=1e-4, l2=[norms[0] + step, *norms[1:]])

    assert [each.severity for each in job.alerts][-1] == "warning"


def test_shares_and_squares_of_shards_add_up() -> None:
    job = Cluster(world=2, names=("w",), state=WholeState(rules=Rules()))
    for rank in range(2):
        job.open(rank)
        job.declare(rank, shards=(f"Shard(0) {rank}/2",))
    for rank in range(2):
        columns = {UPDATE_RMS: [3e-4 + rank * 1e-4], UNCHANGED: [0.25], WEIGHT_RMS: [0.6]}
        job.stats(rank, 0, [1.0], **columns)

    assert job.frame.column(UPDATE_RMS).tolist() == [pytest.approx(5e-4)]
    assert job.frame.column(UNCHANGED).tolist() == [0.5]
    assert job.frame.column(WEIGHT_RMS).tolist() == [pytest.approx(0.6 * np.sqrt(2))]
