"""Norms beyond the range of float64, on each way on which the aggregator puts norms together.

An infinite number would claim an infinite element.
"""

from __future__ import annotations

import math
import sys

import pytest

from tests.support.core import Cluster, frame_of, part_of

LARGEST = sys.float_info.max
HUGE = 1.7e308


def test_of_the_layers_of_one_record() -> None:
    """Whole layers of one rank."""
    assert frame_of(part_of([HUGE] * 4)).total_norm == LARGEST


def test_of_several_records_of_one_rank() -> None:
    parts = [part_of([HUGE, HUGE], index=index) for index in ([0, 1], [2, 3])]

    assert frame_of(*parts).total_norm == LARGEST


def test_of_layers_that_are_sharded() -> None:
    parts = [part_of([HUGE] * 4, rank=rank, shards=[f"Shard(0) {rank}/2"] * 4) for rank in (0, 1)]
    frame = frame_of(*parts)

    assert frame.total_norm == LARGEST
    assert frame.l2_max.tolist() == frame.l2_min.tolist() == [LARGEST] * 4
    assert not frame.nonfinite.any()


def test_of_the_shards_of_one_layer() -> None:
    """Their L2 norms, the largest of several collections, and L1, which is a sum."""
    parts = [
        part_of(
            [HUGE], rank=rank, shards=[f"Shard(0) {rank}/4"], l2_max=[HUGE], l1=[HUGE], linf=[HUGE]
        )
        for rank in range(4)
    ]
    frame = frame_of(*parts)

    assert frame.l2_max.tolist() == frame.l2_min.tolist() == [LARGEST]
    assert frame.columns[:3, 0].tolist() == [LARGEST, LARGEST, HUGE]
    assert not frame.nonfinite.any()


@pytest.mark.parametrize("column", ["l2", "l1"])
@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_shard_that_is_not_finite_shows_in_the_layer(column: str, bad: float) -> None:
    values = [HUGE, bad, HUGE, HUGE]
    frame = frame_of(
        *(
            part_of(**{"l2": [1.0], column: [value]}, rank=rank, shards=[f"Shard(0) {rank}/4"])
            for rank, value in enumerate(values)
        )
    )

    row = ["l2", "l1"].index(column)
    assert str(frame.columns[row, 0]) == str(bad)


def test_of_a_named_group() -> None:
    job = Cluster(names=tuple("abcde"), groups={"host": (0, 1, 2, 3), "seed": (4,)}).start()
    job.step(0, [HUGE] * 4 + [1.0])
    health = job.health()

    assert health["gradient_norm"]["last"] == LARGEST
    assert health["gradient_norm"]["nonfinite_steps"] == 0
    assert 0.0 < health["groups"]["seed/host"] < 1e-300


@pytest.mark.parametrize("world", [2, 3, 5, 6, 7, 49])
def test_of_gains_that_ranks_agree_on(world: int) -> None:
    """A mean is no larger than its largest number, however it is rounded."""
    job = Cluster(world=world).start()
    for rank in range(world):
        job.gains(rank, 0, LARGEST, LARGEST)
        job.stats(rank, 0)

    assert job.attempt.closed.last_gains.gains == (1.0,)
