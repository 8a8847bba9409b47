"""Layers on the ranks of a parallel job: each counts once, what nobody can tell is null."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.frames.distribution import Distribution, find_place, find_stage
from gradwatch_server.core.frames.layers import Layers
from gradwatch_server.core.state_codec import decode, encode
from gradwatch_wire import Column
from tests.support.core import Cluster
from tests.support.records import manifest_of


def meshes(**groups: list[int]) -> dict[str, Any]:
    return {"meshes": {name: Column.pack("<u4", ranks) for name, ranks in groups.items()}}


def stages(rank: int) -> dict[str, Any]:
    """Ranks 0 and 1 are the first stage, 2 and 3 the second."""
    return meshes(pipeline=[rank % 2, rank % 2 + 2], data=[rank // 2 * 2, rank // 2 * 2 + 1])


def test_the_place_of_a_rank_is_told_in_the_order_of_the_dimensions() -> None:
    """A dimension of one rank is none, nor is one that the rank is not in."""
    told = meshes(data=[1, 5], tensor=[4, 5], pipeline=[5, 9], expert=[5], expert_tensor=[5, 6])
    manifest = manifest_of(("a",), **told)

    assert find_place(manifest, 5) == "pipeline stage 0, tensor 1, expert tensor 0, data 1"
    assert (find_stage(manifest, 5), find_stage(manifest, 4)) == (0, None)
    assert find_place(manifest_of(("a",)), 5) == ""
    odd = {"tensor": Column.pack("<f8", [5.0, math.nan]), "rows": Column.pack("<u4", [5, 6])}
    assert find_place(manifest_of(("a",), meshes=odd), 5) == ""


def test_ranks_of_two_stages_are_no_replicas_whatever_their_layers_are_called() -> None:
    layers = Layers()
    layouts = [layers.declare(manifest_of(("a",), **stages(rank)), rank=rank) for rank in range(4)]

    assert layouts[0] is layouts[1]
    assert layouts[2] is layouts[3]
    assert layouts[0] is not layouts[2]


def test_a_name_in_two_stages_is_of_no_known_layer_unless_it_is_a_copy() -> None:
    lies = Distribution()
    lies.add([0, 1, 2], ("", "", ""), 0)
    lies.add([1, 2], ("", "shared"), 1)
    lies.add([3], ("shared",), 1)

    assert lies.unclear == {1}
    assert [mask.tolist() for mask in lies.masks(4)] == [
        [False, False, False, True],
        [False, True, False, False],
    ]
    assert lies.why_unknown("abcd").startswith("b: norms not known: name in several pipeline")
    assert Distribution().why_unknown("abcd") == ""


@pytest.mark.parametrize("is_copy", [True, False])
def test_the_total_is_that_of_all_stages_and_copies_are_left_out(is_copy: bool) -> None:
    job = Cluster(world=4)
    for rank in range(4):
        job.open(rank)
        names = ("a", "tied") if rank < 2 else ("b", "tied" if is_copy else "copy")
        marks = () if rank < 2 else ("", "shared")
        job.declare(rank, names, marks=marks, **stages(rank))
    for rank in range(4):
        job.stats(rank, 0, [3.0 if rank < 2 else 4.0, 12.0])
    health = job.health()

    assert health["gradient_norm"]["last"] == pytest.approx(math.hypot(3.0, 4.0, 12.0))
    assert health["reasons"] == []
    assert [rank["place"] for rank in health["ranks"]][2] == "pipeline stage 1, data 0"


def test_what_two_stages_call_alike_is_null_but_a_nan_in_it_is_told() -> None:
    job = Cluster(world=4, names=("a",))
    for rank in range(4):
        job.open(rank)
        job.declare(rank, **stages(rank))
    for step, norm in enumerate((1.0, math.nan)):
        for rank in range(4):
            l2 = 1.0 + rank // 2 if step == 0 or rank != 3 else norm
            job.stats(rank, step, l2, labels={"reduction": "mean"})
        health = job.health()
        assert job.frame.present.tolist() == [step == 1]
        if step == 0:
            assert health["gradient_norm"]["last"] is None
    assert "disagree" not in " ".join(health["reasons"])  # they are no replicas
    assert "name in several pipeline stages" in " ".join(health["reasons"])
    assert (health["first_bad"]["step"], health["first_bad"]["layer"]) == (1, "a")
    assert health["first_bad"]["rank"] == 3
    assert health["first_bad"]["place"] == "pipeline stage 1, data 1"


@pytest.mark.parametrize(
    ("shard", "ranks", "norm"),
    [
        ("expert 0/2", (0, 1), 5.0),
        ("expert tensor 0/2", (0, 1), 5.0),
        ("expert 0/2", (0,), None),  # nothing has come of the other rank
        ("tensor 0/2", (0, 1), None),
        ("experts 0/2", (0, 1), None),
    ],
)
def test_an_expert_without_tokens_adds_nothing_and_a_shard_that_is_away_is_a_gap(
    shard: str, ranks: tuple[int, ...], norm: float | None
) -> None:
    job = Cluster(world=2, names=("gate", "cut"))
    for rank in range(2):
        job.open(rank)
        names = job.names if rank == 0 else ("gate",)
        job.declare(rank, names, shards=("", shard) if rank == 0 else ("",))
    for rank in ranks:
        job.stats(rank, 0, [4.0, 3.0] if rank == 0 else [4.0])
    job.wait(20.0)

    assert job.health()["gradient_norm"]["last"] == (norm and pytest.approx(norm))


def test_a_layer_that_nobody_knows_how_to_put_together_has_no_norm() -> None:
    job = Cluster(world=2, names=("a", "b"))
    for rank in range(2):
        job.open(rank)
        job.declare(rank, shards=("", f"unknown {rank}/2"))
        job.stats(rank, 0, [3.0, 4.0])

    assert job.health()["gradient_norm"]["last"] is None
    (reason,) = job.health()["reasons"]
    assert reason.startswith("b: norms not known: no mark or group tells how they lie")


def test_no_step_waits_for_a_rank_without_layers_and_none_lacks_it() -> None:
    """Also after the aggregator has read its checkpoint; it is awaited once it has layers."""
    job = Cluster(world=2, names=("a",))
    for rank in range(2):
        job.open(rank)
    job.declare(0)
    job.declare(1, ())
    job.stats(0, 0, 2.0)
    assert job.health()["window"]["coverage"] == 1.0
    assert job.health()["step"] == 0
    assert decode(encode(job.attempt), Attempt).ranks.awaited == {0}

    job.declare(1, ("a",), manifest_id=2)
    job.stats(0, 1, 2.0)
    assert job.health()["step"] == 0
