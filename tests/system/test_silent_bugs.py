"""Bugs that leave norms and loss healthy, in real trainings: told, and nothing of their twins."""

from __future__ import annotations

import pytest

from tests.support.aggregator import Aggregator
from tests.support.job import Train

pytestmark = pytest.mark.slow

WORKER = "silent_worker.py"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize(
    ("bug", "told"),
    [
        ("none", []),
        ("rate", [("not_learning", 10, "info")]),
        ("stale", [("repeated_gradient", 10, "warning")]),
        ("same-batch", [("same_batch", 0, "warning")]),
    ],
)
def test_each_bug_is_told_from_its_step_on_and_a_healthy_twin_of_nothing(
    aggregator: Aggregator, train: Train, world: int, bug: str, told: list[tuple[str, int, str]]
) -> None:
    aggregator.start()
    train(world, "--run", bug, "--bug", bug, worker=WORKER).wait()
    health = aggregator.health_of_ended(bug)

    found = [
        (alert["rule"], alert["origin"]["step"], alert["severity"])
        for alert in aggregator.json(f"/runs/{bug}/alerts")
    ]
    assert found == ([] if world == 1 and bug == "same-batch" else told)
    assert health["step"] == 59
