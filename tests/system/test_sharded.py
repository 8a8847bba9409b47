"""Sharded training on real gloo processes: the aggregator's norms are those of the whole model."""

from __future__ import annotations

import json

import pytest

from tests.support.aggregator import Aggregator
from tests.support.job import Train

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("way", "world"),
    [
        ("fsdp", 2),
        ("hsdp", 4),
        ("tp", 2),
        pytest.param("fsdp", 4, marks=pytest.mark.exhaustive),
        pytest.param("fsdp+tp", 4, marks=pytest.mark.exhaustive),
    ],
)
def test_the_norms_of_shards_add_up_to_those_of_the_unsharded_model(
    aggregator: Aggregator, train: Train, way: str, world: int
) -> None:
    """Total and per layer within 1e-5, with uneven and empty shards, and no collective of ours."""
    aggregator.start()
    job = train(world, "--run", "cut", "--way", way, worker="sharded_worker.py")
    reports = [json.loads(output.splitlines()[-1]) for output in job.wait()]
    expected = reports[0]
    health = aggregator.health_of_ended("cut")
    groups = aggregator.json("/runs/cut/groups")["groups"]

    assert [report["faults"] for report in reports] == [""] * world
    assert health["step"] == 2
    assert health["window"]["coverage"] == 1.0
    assert health["records"]["unresolved"] == health["records"]["late"] == 0
    assert health["gradient_norm"]["last"] == pytest.approx(expected["total"], rel=1e-5)
    assert {g["name"]: g["l2"] for g in groups} == pytest.approx(expected["layers"], rel=1e-5)
    assert health["layers"]["total"] == len(expected["layers"])
    assert health["reasons"] == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("way", "world"), [("fsdp", 2), ("hsdp", 4), ("tp", 2)])
def test_a_rank_is_not_named_by_what_a_reduction_put_into_its_shard(
    aggregator: Aggregator, train: Train, way: str, world: int
) -> None:
    """Rank 1's NaN lies in the first row, which rank 0 holds; `local=True` cannot know (C1)."""
    aggregator.start()
    arguments = ("--run", "cut", "--way", way, "--local", "--poison-rank", "1")
    job = train(world, *arguments, worker="sharded_worker.py")
    reports = [json.loads(output.splitlines()[-1]) for output in job.wait()]
    first_bad = aggregator.health_of_ended("cut")["first_bad"]
    (alert,) = [a for a in aggregator.json("/runs/cut/alerts") if a["group"] == "first.weight"]

    assert all("attach(local=True) knows nothing of" in r["faults"] for r in reports)
    assert (first_bad["step"], first_bad["rank"]) == (2, None)
    assert (alert["origin"]["rank"], alert["origin"]["ranks"]) == (None, [])
