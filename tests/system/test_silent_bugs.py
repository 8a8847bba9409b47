"""Bugs that leave norms and loss healthy, in real trainings: told, and nothing of their twins."""

from __future__ import annotations

import pytest

from tests.support.aggregator import Aggregator
from tests.support.job import Train

pytestmark = pytest.mark.slow

WORKER = "silent_worker.py"


ONE_BATCH, NOT_ZEROED = "same-batch", "not-zeroed"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("world", "options"), [(1, ()), (2, ()), (2, ("--sharded",))], ids=["one", "DDP", "FSDP2"]
)
@pytest.mark.parametrize(
    ("bug", "told"),
    [
        ("none", []),
        ("rate", [("not_learning", 10, "info")]),
        ("stale", [("repeated_gradient", 10, "warning")]),
        (ONE_BATCH, [("same_batch", 0, "warning")]),
        ("still-group", [("weights_unchanged", 0, "info")]),
        (NOT_ZEROED, [("not_zeroed", 1, "warning")]),
    ],
)
def test_each_bug_is_told_from_its_step_on_and_a_healthy_twin_of_nothing(
    aggregator: Aggregator,
    train: Train,
    world: int,
    options: tuple[str, ...],
    bug: str,
    told: list[tuple[str, int, str]],
) -> None:
    aggregator.start()
    train(world, "--run", bug, "--bug", bug, *options, worker=WORKER).wait()
    health = aggregator.health_of_ended(bug)

    found = [
        (alert["rule"], alert["origin"]["step"], alert["severity"])
        for alert in aggregator.json(f"/runs/{bug}/alerts")
    ]
    # Ranks that hold shards, and a single one, are not compared; of shards the latter is not known.
    is_unknown = bug == ONE_BATCH and (world, options) != (2, ())
    is_unknown |= bug == NOT_ZEROED and bool(options)
    assert found == ([] if is_unknown else told)
    assert health["step"] == 59
    if bug == "none":
        layers = aggregator.json(f"/runs/{bug}/frames/0")["layers"]
        # The first step of Adam is the learning rate, whatever the gradient.
        assert [each["update_rms"] for each in layers] == pytest.approx([1e-3] * 4, rel=0.02)
        of_linear = [(3 * size) ** -0.5 for size in (32, 32, 64, 64)]  # uniform in ±1/√size
        assert sorted(each["weight_rms"] for each in layers) == pytest.approx(
            sorted(of_linear), rel=0.3
        )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("framework", ["lightning", "trainer"])
@pytest.mark.parametrize(
    ("bug", "told"),
    [
        ("none", []),
        ("rate", [("not_learning", "info")]),
        ("still-group", [("weights_unchanged", "info")]),
        (NOT_ZEROED, [("not_zeroed", "warning")]),
    ],
)
def test_the_same_inside_lightning_and_the_trainer(
    aggregator: Aggregator, train: Train, framework: str, bug: str, told: list[tuple[str, str]]
) -> None:
    aggregator.start()
    options = ("--run", bug, "--bug", bug, "--framework", framework)
    train(1, *options, worker="silent_framework_worker.py").wait()
    aggregator.health_of_ended(bug)
    alerts = aggregator.json(f"/runs/{bug}/alerts")

    assert [(alert["rule"], alert["severity"]) for alert in alerts] == told
