"""Corrupted weights of one replica: real DDP ranks over gloo, a real aggregator."""

from __future__ import annotations

import pytest

from tests.support.aggregator import Aggregator
from tests.support.job import Train

pytestmark = pytest.mark.slow

WORKER = "weights_worker.py"


def test_a_corrupted_weight_of_one_rank_is_told_with_rank_and_layer(
    aggregator: Aggregator, train: Train
) -> None:
    """The averaged gradients stay equal on all ranks: only the digest of step 12 shows it."""
    aggregator.start()
    train(3, "--run", "corrupted", "--odd-rank", "1", worker=WORKER).wait()
    aggregator.health_of_ended("corrupted")

    (alert,) = aggregator.json("/runs/corrupted/alerts")
    assert (alert["rule"], alert["group"], alert["severity"]) == (
        "rank_divergence",
        "weights",
        "critical",
    )
    origin = alert["origin"]
    assert (origin["step"], origin["rank"], origin["layer"]) == (12, 1, "2.weight")
    assert alert["layers"] == ["2.weight"]


@pytest.mark.exhaustive
def test_replicas_that_train_well_disagree_on_nothing(aggregator: Aggregator, train: Train) -> None:
    aggregator.start()
    train(3, "--run", "well", "--steps", "40", worker=WORKER).wait()
    aggregator.health_of_ended("well")

    assert aggregator.json("/runs/well/alerts") == []
