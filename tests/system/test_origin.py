"""Where a NaN began: real DDP ranks, a real aggregator; rank 1 makes it at step 2."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.aggregator import Aggregator
from tests.support.job import Train

pytestmark = pytest.mark.slow

FORWARD = "Loss or forward pass not finite since step 2 on rank 1, then "
GRADIENT = "NaN gradient since step 2 on rank 1: "
BEFORE = "NaN in the forward pass since step 2 on rank 1: first from second"
MAYBE = "NaN gradient since step 2 on rank 1, maybe the loss before: "


def first_bad(aggregator: Aggregator, train: Train, *ways: str) -> dict[str, Any]:
    """Return what `/health` has as `first_bad` of each way to train."""
    aggregator.start()
    train(2, "--ways", ",".join(ways), worker="origin_worker.py").wait()
    return {way: aggregator.health_of_ended(way)["first_bad"] for way in ways}


def test_a_rank_is_not_accused_of_what_another_put_into_its_gradients(
    aggregator: Aggregator, train: Train
) -> None:
    """Without `no_sync` the second pass adds to a gradient that all ranks' first pass is in (C13).

    It is seen at its pass with an optimizer, at the end of both without.
    """
    ways = ("accumulate", "accumulate-local", "accumulate-collect")
    found = first_bad(aggregator, train, *ways)

    assert {way: (bad["step"], bad["rank"]) for way, bad in found.items()} == dict.fromkeys(
        ways, (2, 1)
    )


@pytest.mark.exhaustive
def test_a_loss_that_is_that_of_all_ranks_accuses_none(
    aggregator: Aggregator, train: Train
) -> None:
    """The probe of the local gradients still tells (C13)."""
    found = first_bad(aggregator, train, "same-loss")["same-loss"]

    assert (found["step"], found["rank"], found["bad_loss"]) == (2, 1, True)


@pytest.mark.exhaustive
def test_ranks_that_train_on_with_bad_weights_are_not_accused(
    aggregator: Aggregator, train: Train
) -> None:
    """Four steps a record, the weights NaN after the third: the first bad step tells (C13)."""
    ways = ("report", "report-unknown", "report-local")
    found = first_bad(aggregator, train, *ways)

    assert {way: (bad["step"], bad["rank"]) for way, bad in found.items()} == dict.fromkeys(
        ways, (2, 1)
    )
    assert [found[way]["bad_loss"] for way in ways] == [True, None, True]


BORN = {
    # way to train: (layer, layer of the first bad gradient, whether the loss was bad, message)
    "forward": (None, "head.bias", True, FORWARD),
    "forward-unknown": (None, "head.bias", None, MAYBE),
    "loss": ("head.bias", "head.bias", False, GRADIENT),
    "loss-unknown": (None, "head.bias", None, MAYBE),
    "backward": ("second.bias", "second.bias", False, GRADIENT),
    "backward-unknown": ("second.bias", "second.bias", None, GRADIENT),
}


@pytest.mark.exhaustive
def test_what_is_born_in_the_forward_pass_is_not_put_down_to_the_last_layer(
    aggregator: Aggregator, train: Train
) -> None:
    """0/0 in the first activation makes every gradient NaN, the last layer's first (C14)."""
    found = first_bad(aggregator, train, *BORN)

    for way, (layer, first_gradient, bad_loss, says) in BORN.items():
        (alert,) = aggregator.json(f"/runs/{way}/alerts")
        origin = alert["origin"]
        known = {
            "step": 2,
            "rank": 1,
            "layer": layer,
            "kind": "nan",
            "bad_loss": bad_loss,
            "first_gradient": first_gradient,
        }
        assert {key: found[way][key] for key in known} == known, way
        assert found[way]["module"] is None, way
        assert found[way]["num_layers"] == (4 if first_gradient == "second.bias" else 6), way
        assert {key: origin[key] for key in known} == known, way
        assert alert["message"].startswith(says)
        assert " since step 2 on rank 1" in alert["message"]


OUTPUTS = {
    # way to train: (first module whose output was bad, what the message begins with)
    "activations": ("second", BEFORE),
    "report-activations": ("second", BEFORE),
    "accumulate-activations": ("second", BEFORE),
    "backward-activations": (None, GRADIENT),
}


def test_what_is_born_in_the_forward_pass_is_put_down_to_a_module(
    aggregator: Aggregator, train: Train
) -> None:
    """0/0 before the second of three modules, on one rank, where outputs are measured."""
    found = first_bad(aggregator, train, *OUTPUTS)

    for way, (module, says) in OUTPUTS.items():
        (alert,) = aggregator.json(f"/runs/{way}/alerts")
        origin = alert["origin"]
        assert (found[way]["module"], origin["module"]) == (module, module), way
        assert (found[way]["step"], found[way]["rank"], origin["rank"]) == (2, 1, 1), way
        assert alert["message"].startswith(says), way
    before = aggregator.json("/runs/activations/alerts")[0]["origin"]["magnitudes_before"]

    assert [each["step"] for each in before] == [0, 1]
    assert all(0.0 < each["magnitude"] < 10.0 for each in before)
