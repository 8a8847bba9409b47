"""Parameters that lie on four gloo ranks by hand: numbers, ranks and places are right, or unknown.

The reference is the same model in float64 on one process.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from tests.support.aggregator import Aggregator
from tests.support.job import Train

pytestmark = pytest.mark.slow

LAST = 3
PLACES: dict[str, list[Any]] = {
    "tp+pp": [f"pipeline stage {rank // 2}, tensor {rank % 2}" for rank in range(4)],
    "tp+dp": [f"tensor {rank % 2}, data {rank // 2}" for rank in range(4)],
    "ep+dp": [f"expert {rank % 2}, data {rank // 2}" for rank in range(4)],
    "zero1": [f"data {rank}" for rank in range(4)],
    "zero2": [f"data {rank}" for rank in range(4)],
    "torch zero": [None] * 4,
}


def run(train: Train, way: str, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    """Train to the end; return what each rank reports, and all that they print."""
    job = train(4, "--run", "cut", "--way", way, *arguments, worker="parallel_worker.py")
    printed = job.wait()
    return [json.loads(output.splitlines()[-1]) for output in printed], "".join(printed)


def expected_at(reference: dict[str, Any], way: str) -> dict[str, dict[str, float]]:
    """Return the layers as the ranks hold them: each has two of four experts, one without words."""
    found = dict(reference)
    if way == "tp+pp":
        found["output.weight"] = found["embed.weight"]
    if way == "ep+dp":
        for kind in ("weight", "bias"):
            one, other = (found[f"experts.mine.{number}.{kind}"] for number in (0, 2))
            both = {"l2": math.hypot(one["l2"], other["l2"])}
            both["update_rms"] = math.hypot(one["update_rms"], other["update_rms"]) / 2**0.5
            found[f"experts.mine.0.{kind}"] = both
            # The weights of the other half of it were not read.
            found[f"experts.mine.1.{kind}"] |= {"update_rms": None}
            del found[f"experts.mine.2.{kind}"]
    return found


def total_of(layers: dict[str, Any]) -> float:
    """Return the norm of all layers, the tied copy left out."""
    return math.hypot(*(layer["l2"] for name, layer in layers.items() if name != "output.weight"))


@pytest.mark.parametrize("way", PLACES)
def test_each_layer_is_that_of_the_whole_model(
    aggregator: Aggregator, train: Train, way: str
) -> None:
    """Norm, update and total at each step; each rank has its place, and nothing is a fault."""
    aggregator.start()
    reports, _ = run(train, way)
    health = aggregator.health_of_ended("cut")

    assert [report["faults"] for report in reports] == [""] * 4
    assert health["reasons"] == []
    assert health["records"]["unresolved"] == health["records"]["late"] == 0
    assert [rank["place"] for rank in health["ranks"]] == PLACES[way]
    for step, reference in enumerate(reports[0]["reference"]):
        frame = aggregator.json(f"/runs/cut/frames/{step}?worst=99")
        expected = expected_at(reference, way)
        found = {layer["name"]: layer for layer in frame["layers"]}
        assert {name for name in found if found[name]["l2"] is not None} == expected.keys()
        for name, own in expected.items():
            told = {key: found[name][key] for key in own if own[key] is not None}
            known = {key: number for key, number in own.items() if number is not None}
            assert told == pytest.approx(known, rel=1e-5), name
            assert (found[name]["update_rms"] is None) == (own["update_rms"] is None), name
            assert found[name]["nans"] == 0, name
        assert frame["norm"] == pytest.approx(total_of(expected), rel=1e-5)
        assert frame["coverage"] == 1.0


@pytest.mark.parametrize(
    ("way", "rank", "named"),
    [
        ("tp+pp", 3, 3),
        ("tp+dp", 3, 3),
        # The NaN is reduced to the rank that steps the layer, and no probe has seen it before.
        ("zero1", 1, None),
        ("zero2", 1, None),
    ],
)
def test_a_bad_gradient_has_the_name_and_place_of_its_rank_if_they_are_known(
    aggregator: Aggregator, train: Train, way: str, rank: int, named: int | None
) -> None:
    aggregator.start()
    run(train, way, "--poison-rank", str(rank))
    first_bad = aggregator.health_of_ended("cut")["first_bad"]
    frame = aggregator.json(f"/runs/cut/frames/{LAST}?layer=layers.1.down.weight")
    (alert,) = [a for a in aggregator.json("/runs/cut/alerts") if a["rule"] == "nonfinite"]
    place = "" if named is None else PLACES[way][named]

    assert (first_bad["step"], first_bad["layer"]) == (LAST, "layers.1.down.weight")
    assert (first_bad["rank"], first_bad["place"]) == (named, place)
    assert frame["layers"][0]["nans"] == 1
    assert (f"rank {named} is {place}" in alert["message"]) == (named is not None)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("way", "rank", "layer", "is_named"),
    [
        ("tp+pp", 1, "layers.0.norm.weight", True),
        ("tp+dp", 3, "layers.0.norm.weight", True),
        # Of two ranks with the same shard nobody can tell which is odd.
        ("tp+dp", 2, "layers.0.up.weight", False),
        ("ep+dp", 2, "experts.mine.0.weight", False),
    ],
)
def test_weights_are_compared_where_they_should_agree(
    aggregator: Aggregator, train: Train, way: str, rank: int, layer: str, is_named: bool
) -> None:
    """A changed weight is told of its layer alone; shards of others are no replicas of it."""
    aggregator.start()
    run(train, way, "--corrupt-rank", str(rank), "--corrupt", layer)
    alerts = [a for a in aggregator.json("/runs/cut/alerts") if a["rule"] == "rank_divergence"]

    assert [alert["origin"]["step"] for alert in alerts] == [2]
    assert (alerts[0]["origin"]["layer"], alerts[0]["origin"]["rank"]) == (
        layer,
        rank if is_named else None,
    )


@pytest.mark.parametrize(
    ("way", "told", "reason"),
    [
        ("unmarked", "no parameter says by `tensor_model_parallel`", "no mark or group tells"),
        ("unnamed", "", "name in several pipeline stages"),
    ],
)
def test_what_cannot_be_known_is_said_and_not_guessed(
    aggregator: Aggregator, train: Train, way: str, told: str, reason: str
) -> None:
    """No norm, no total, no alert; each rank says at `attach` what is missing, if it can know."""
    aggregator.start()
    _, printed = run(train, way)
    health = aggregator.health_of_ended("cut")
    frame = aggregator.json(f"/runs/cut/frames/{LAST}?worst=99")

    assert [reason in why for why in health["reasons"]] == [True]
    assert frame["norm"] is None
    names = {layer["name"] for layer in frame["layers"] if layer["l2"] is not None}
    assert names == (set() if way == "unmarked" else {"embed.weight", "output.weight"})
    assert aggregator.json("/runs/cut/alerts") == []
    assert told in printed


def test_no_step_waits_for_a_rank_without_parameters(aggregator: Aggregator, train: Train) -> None:
    aggregator.start()
    run(train, "empty")
    health = aggregator.health_of_ended("cut")

    assert (health["step"], health["window"]["coverage"]) == (LAST, 1.0)
    assert health["reasons"] == []
    assert aggregator.json("/runs/cut/alerts") == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("way", ["tp", "fsdp"])
def test_pipelines_of_torch_with_dtensors_or_fsdp_in_each_stage(
    aggregator: Aggregator, train: Train, way: str, schedule: str
) -> None:
    """Groups are found by the names of the meshes; only the last stage has a loss."""
    aggregator.start()
    arguments = ("--run", "cut", "--way", way, "--schedule", schedule)
    printed = train(4, *arguments, worker="pipelining_worker.py").wait()
    reports = [json.loads(output.splitlines()[-1]) for output in printed]
    health = aggregator.health_of_ended("cut")
    frame = aggregator.json(f"/runs/cut/frames/{LAST}?worst=99")
    inner = "tensor" if way == "tp" else "data"

    assert [report["faults"] for report in reports] == [""] * 4
    assert all("call collect() after schedule.step()" in output for output in printed)
    assert health["reasons"] == []
    assert [rank["place"] for rank in health["ranks"]] == [
        f"pipeline stage {rank // 2}, {inner} {rank % 2}" for rank in range(4)
    ]
    found = {layer["name"]: layer["l2"] for layer in frame["layers"]}
    assert found == pytest.approx(reports[0]["layers"], rel=1e-5)
    assert frame["norm"] == pytest.approx(math.hypot(*reports[0]["layers"].values()), rel=1e-5)
    assert frame["loss"] == pytest.approx(reports[0]["loss"], rel=1e-5)
