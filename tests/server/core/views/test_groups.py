"""Named groups of layers: their norms, and what they are to each other."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gradwatch_server.core.views.groups import describe_groups
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_wire.jsonable import jsonable
from tests.support.core import Cluster

NAN, INF = math.nan, math.inf
GROUPS = {"host": (0, 1), "seed": (2,)}


def shown(job: Any) -> Any:
    return jsonable(describe_groups(view_run(job.state.runs["gpt"])))


def seeded(cluster: Any, **settings: Any) -> Any:
    """A job of three layers of 10 elements: two of the host, one of the seed."""
    return cluster(names=("a", "b", "c"), groups=GROUPS, **settings).start()


def test_a_group_has_the_norm_of_its_layers_together() -> None:
    job = seeded(Cluster)
    job.step(4, [3.0, 4.0, 1.0])
    answer = shown(job)

    assert answer["step"] == 4
    assert answer["groups"] == [
        {"name": "host", "layers": 2, "numel": 20, "l2": 5.0},
        {"name": "seed", "layers": 1, "numel": 10, "l2": 1.0},
    ]
    expected = (1.0 / math.sqrt(10)) / (5.0 / math.sqrt(20))
    assert answer["ratios"] == {
        "seed/host": pytest.approx(expected),
        "host/seed": pytest.approx(1 / expected),
    }


def test_health_has_each_pair_once_the_later_over_the_earlier() -> None:
    groups = {"z": (0,), "m": (1,), "a": (2,)}
    job = Cluster(names=("x", "y", "w"), groups=groups).start()
    assert job.health()["groups"] == {"m/z": None, "a/z": None, "a/m": None}
    job.step(0, [1.0, 2.0, 8.0])

    assert list(job.health()["groups"].items()) == [
        ("m/z", pytest.approx(2.0)),
        ("a/z", pytest.approx(8.0)),
        ("a/m", pytest.approx(4.0)),
    ]


@pytest.mark.parametrize(
    ("l2", "ratio"),
    [
        ([3.0, NAN, 1.0], "NaN"),
        ([3.0, 4.0, NAN], "NaN"),
        ([3.0, INF, 1.0], "NaN"),
        ([3.0, 4.0, INF], "NaN"),
        ([0.0, 0.0, INF], "NaN"),
        ([NAN, 4.0, 0.0], "NaN"),
        ([0.0, 0.0, 1.0], 0.0),
        ([3.0, 4.0, 0.0], 0.0),
    ],
)
def test_a_ratio_with_a_norm_that_is_not_finite_is_nan(l2: list[float], ratio: Any) -> None:
    job = seeded(Cluster)
    job.step(0, l2)

    assert shown(job)["ratios"] == {"seed/host": ratio, "host/seed": ratio}


@pytest.mark.parametrize("tiny", [5e-324, 1e-300])
def test_a_ratio_of_very_small_norms_is_right(tiny: float) -> None:
    """Divided by the root of their elements they would vanish."""
    job = seeded(Cluster)
    job.step(0, [tiny, 0.0, tiny])

    assert shown(job)["ratios"]["seed/host"] == pytest.approx(math.sqrt(2.0))


def test_only_layers_that_are_there_count() -> None:
    """A frozen layer has no elements in the ratio; a group that is absent has no ratio."""
    job = seeded(Cluster)
    job.declare(0, ["b", "c"], manifest_id=2, groups={})
    job.declare(0, ["a"], manifest_id=3, groups={})
    job.stats(0, 0, [4.0, 1.0], manifest_id=2)
    assert shown(job)["groups"][0] == {"name": "host", "layers": 1, "numel": 10, "l2": 4.0}
    assert shown(job)["ratios"]["seed/host"] == 0.25

    job.stats(0, 1, [4.0], manifest_id=3)

    assert shown(job)["groups"][1] == {"name": "seed", "layers": 0, "numel": 0, "l2": None}
    assert shown(job)["ratios"] == {"seed/host": None, "host/seed": None}


def test_layers_that_join_a_group_later_count_from_then_on() -> None:
    job = seeded(Cluster)
    job.step(0, [3.0, 4.0, 1.0])
    job.declare(0, ["a", "b", "c", "d"], manifest_id=2, groups={"seed": (3,)})
    assert shown(job)["groups"][1]["l2"] == 1.0

    job.stats(0, 1, [3.0, 4.0, 3.0, 4.0], manifest_id=2)

    assert shown(job)["groups"][1] == {"name": "seed", "layers": 2, "numel": 20, "l2": 5.0}


def test_cut_layers_count_with_the_elements_of_the_whole() -> None:
    """A manifest's numel is that of the layer, whatever the rank holds of it."""
    job = Cluster(world=2, names=("w", "s"), groups={"host": (0,), "seed": (1,)})
    for rank in (0, 1):
        job.open(rank)
        job.declare(rank, shards=(f"Shard(0) {rank}/2", ""))
    job.stats(0, 0, [3.0, 1.0])
    job.stats(1, 0, [4.0, 1.0])

    assert shown(job)["groups"][0] == {"name": "host", "layers": 1, "numel": 10, "l2": 5.0}
    assert shown(job)["ratios"]["seed/host"] == pytest.approx(0.2)


def test_without_groups_or_steps_there_is_nothing_to_compare() -> None:
    """Well formed all the same."""
    assert shown(Cluster().start()) == {"step": None, "groups": [], "ratios": {}}
    assert shown(seeded(Cluster)) == {
        "step": None,
        "groups": [
            {"name": "host", "layers": 0, "numel": 0, "l2": None},
            {"name": "seed", "layers": 0, "numel": 0, "l2": None},
        ],
        "ratios": {"seed/host": None, "host/seed": None},
    }
