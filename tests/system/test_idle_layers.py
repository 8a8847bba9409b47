"""A layer that loses its gradient midway: real trainings, plain and DDP, a real aggregator."""

from __future__ import annotations

import pytest

from tests.support.aggregator import Aggregator
from tests.support.job import Train

pytestmark = pytest.mark.slow

WORKER = "idle_worker.py"
MIDDLE = ["middle.weight", "middle.bias"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("world", [1, 2])
def test_a_layer_that_is_frozen_midway_is_info(
    aggregator: Aggregator, train: Train, world: int
) -> None:
    """Freezing is done on purpose; the run stays healthy."""
    aggregator.start()
    train(world, "--run", "frozen", "--midway", "freeze", worker=WORKER).wait()
    health = aggregator.health_of_ended("frozen")

    (alert,) = aggregator.json("/runs/frozen/alerts")
    assert (alert["rule"], alert["severity"], alert["group"]) == ("layer_missing", "info", "frozen")
    assert sorted(alert["layers"]) == sorted(MIDDLE)
    assert (health["status"], health["step"]) == ("healthy", 79)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("world", [1, 2])
def test_a_layer_that_is_detached_midway_is_a_warning_that_names_it(
    aggregator: Aggregator, train: Train, world: int
) -> None:
    aggregator.start()
    train(world, "--run", "detached", "--midway", "detach", worker=WORKER).wait()
    aggregator.health_of_ended("detached")

    (alert,) = aggregator.json("/runs/detached/alerts")
    assert (alert["rule"], alert["severity"], alert["state"]) == (
        "layer_missing",
        "warning",
        "firing",
    )
    assert sorted(alert["layers"]) == sorted(MIDDLE)
    assert (alert["origin"]["step"], alert["origin"]["layer"]) == (40, "middle.weight")
    assert alert["fired_step"] == 42
    assert "though it requires one" in alert["message"]


@pytest.mark.exhaustive
def test_the_alert_is_over_once_the_layer_is_frozen(aggregator: Aggregator, train: Train) -> None:
    aggregator.start()
    train(1, "--run", "both", "--midway", "detach, then freeze", worker=WORKER).wait()
    aggregator.health_of_ended("both")

    (alert,) = aggregator.json("/runs/both/alerts")
    assert (alert["state"], alert["resolved_by"]) == ("resolved", "frozen")
    assert alert["resolved_step"] == 69
