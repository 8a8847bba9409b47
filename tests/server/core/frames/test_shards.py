"""Sharded layers: put together they are what the whole layer is, or unknown."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.frames.rows import ROW_OF
from gradwatch_wire.columns import MEASURED_COLUMNS
from tests.support.core import Cluster, frame_of, part_of

NAN, INF = math.nan, math.inf
UNKNOWN = [ROW_OF[name] for name in ("l1", "linf", "zeros")]
COUNTED = [ROW_OF[name] for name in ("nans", "infs")]


def statistics(elements: FloatArray) -> dict[str, float]:
    """Return what a kernel gives for some elements of a tensor, worked out another way."""
    numbers = elements.tolist()
    return {
        "l2": math.hypot(*numbers),
        "l1": math.fsum(map(abs, numbers)),
        "linf": max(map(abs, numbers), default=0.0),
        "zeros": float(numbers.count(0.0)),
        "nans": float(np.isnan(elements).sum()),
        "infs": float(np.isinf(elements).sum()),
    }


@st.composite
def sharded_tensors(draw: st.DrawFn) -> list[FloatArray]:
    """A tensor in uneven shards, some of them empty, of which magnitudes are far apart."""
    seed = draw(st.integers(0, 1 << 32))
    size = draw(st.integers(0, 60))
    low, high = sorted(draw(st.tuples(st.integers(-300, 299), st.integers(-300, 299))))
    random = np.random.default_rng(seed)
    tensor = random.standard_normal(size) * 10.0 ** random.uniform(low, high, size)
    tensor[random.random(size) < 0.1] = 0.0
    splits = draw(st.lists(st.integers(0, size), max_size=6).map(sorted))
    return np.split(tensor, splits)


@pytest.mark.slow
@given(layers=st.lists(sharded_tensors(), min_size=1, max_size=4), data=st.data())
@settings(max_examples=200)
def test_a_layer_of_shards_is_the_layer(
    layers: list[list[FloatArray]], data: st.DataObject
) -> None:
    most = max(map(len, layers))
    parts: list[Any] = []
    for number in range(most):
        held = [layer for layer, shards in enumerate(layers) if number < len(shards)]
        own = [statistics(layers[layer][number]) for layer in held]
        for _ in range(data.draw(st.integers(1, 3), label="replicas")):
            parts.append(
                part_of(
                    rank=len(parts),
                    index=held,
                    shards=[f"Shard(0) {number}/{len(layers[layer])}" for layer in held],
                    **{name: [one[name] for one in own] for name in MEASURED_COLUMNS},
                )
            )
    frame = frame_of(*data.draw(st.permutations(parts)))

    whole = [np.concatenate(shards) for shards in layers]
    for layer, tensor in enumerate(whole):
        expected = statistics(tensor)
        for row, name in enumerate(MEASURED_COLUMNS):
            assert frame.columns[row, layer] == pytest.approx(expected[name], rel=1e-12, abs=0)
        assert frame.l2_min[layer] == frame.l2_max[layer] == frame.columns[0, layer]
    assert frame.present.all()
    assert frame.num_partial == 0
    total = math.hypot(*np.concatenate(whole).tolist())
    assert frame.total_norm == pytest.approx(total, rel=1e-12, abs=0)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1.0, 1e200, 1e300, 5e-324])
def test_shards_of_any_size_add_up(scale: float) -> None:
    parts = [
        part_of([norm * scale, 1.0], rank=rank, shards=[f"{rank}/2"] * 2)
        for rank, norm in enumerate((3.0, 4.0))
    ]
    frame = frame_of(*parts)

    assert frame.l2_max.tolist() == pytest.approx([5.0 * scale, math.sqrt(2.0)], rel=1e-12)


def sharded(make_part: Any, *shards: Any, of: int, rank: int = 0, **settings: Any) -> list[Any]:
    """Return one part per shard: `(number, l2)` or `(number, l2, columns)` of a single layer."""
    return [
        make_part([l2], rank=rank + at, shards=[f"Shard(0) {number}/{of}"], **more, **settings)
        for at, (number, l2, *rest) in enumerate(shards)
        for more in [{name: [value] for name, value in (rest[0] if rest else {}).items()}]
    ]


def test_replicas_of_a_shard_are_one_shard() -> None:
    parts = sharded(part_of, (0, 3.0), (1, 4.0), (0, 6.0), (1, 8.0), of=2)
    frame = frame_of(*parts)

    assert (frame.l2_max[0], frame.l2_min[0]) == (pytest.approx(10.0), pytest.approx(5.0))


def test_a_sharded_layer_stands_beside_whole_ones() -> None:
    """FSDP leaves small parameters whole: in the total norm each layer is once."""
    parts = [
        part_of([2.0, norm], rank=rank, shards=["", f"Shard(0) {rank}/2"])
        for rank, norm in enumerate((3.0, 4.0))
    ]
    frame = frame_of(*parts, part_of([7.0], index=[2], rank=2))

    assert frame.l2_max.tolist() == pytest.approx([2.0, 5.0, 7.0])
    assert frame.total_norm == pytest.approx(math.sqrt(4.0 + 25.0 + 49.0))


def test_whole_layers_alone_are_not_added_up() -> None:
    """A shard that is the whole of a layer is the whole layer."""
    frame = frame_of(*(part_of([3.0], rank=rank, shards=["Shard(0) 0/1"]) for rank in (0, 1)))

    assert (frame.l2_max[0], frame.total_norm) == (3.0, 3.0)
    assert frame.parts[0].layout.shards is None


def test_a_layer_without_all_its_shards_is_not_measured() -> None:
    parts = sharded(part_of, (0, 3.0), (1, 4.0), (3, 5.0), of=4)
    frame = frame_of(*parts, part_of([1.0], index=[1], rank=9), world=5)

    assert frame.present.tolist() == [False, True]
    assert frame.nonfinite.tolist() == [False, False]
    assert np.isnan(frame.columns[:, 0]).all()
    assert np.isnan([frame.l2_max[0], frame.l2_min[0]]).all()
    assert (frame.num_partial, frame.total_norm) == (1, None)
    assert frame.coverage == 0.8


@pytest.mark.parametrize(
    ("bad", "l2"),
    [
        ((1, NAN), NAN),
        ((1, INF), INF),
        ((1, 1.0, {"nans": 2.0, "infs": 0.0}), NAN),
        ((1, 1.0, {"nans": 0.0, "infs": 2.0}), INF),
        ((1, 1.0, {"infs": 2.0}), INF),
    ],
)
def test_a_bad_shard_is_known_without_the_others(bad: Any, l2: float) -> None:
    first = (0, 3.0, {"l1": 4.0, "linf": 2.0, "zeros": 1.0})
    frame = frame_of(*sharded(part_of, first, bad, of=3))

    assert (frame.present[0], frame.nonfinite[0], frame.num_partial) == (True, True, 1)
    np.testing.assert_array_equal(frame.l2_max, [l2])
    assert not np.isfinite(frame.l2_min[0])
    assert np.isnan(frame.columns[UNKNOWN, 0]).all()
    assert frame.total_norm is not None
    assert not math.isfinite(frame.total_norm)


def test_a_bad_shard_makes_the_whole_layer_bad() -> None:
    counted = sharded(part_of, (0, 3.0), (1, 4.0, {"nans": 2.0, "infs": 1.0}), of=2)
    frame = frame_of(*counted)
    assert frame.nonfinite[0]
    assert frame.columns[COUNTED, 0].tolist() == [2.0, 1.0]

    frame = frame_of(*sharded(part_of, (0, INF), (1, NAN), of=2))
    assert np.isnan(frame.l2_max[0])


def test_what_a_shard_did_not_measure_is_not_known_of_the_layer() -> None:
    """Half a sum is no sum."""
    frame = frame_of(
        *sharded(part_of, (0, 3.0, {"l1": 4.0, "linf": 2.0, "zeros": 1.0}), (1, 4.0), of=2)
    )

    assert frame.l2_max[0] == pytest.approx(5.0)
    assert np.isnan(frame.columns[UNKNOWN, 0]).all()


def test_shards_of_different_partitions_do_not_make_a_layer() -> None:
    """Half by rows and half by columns are not the whole; two that are whole are replicas."""
    rows = [part_of([3.0], rank=0, shards=["Shard(0) 0/2"])]
    columns = [part_of([4.0], rank=1, shards=["Shard(1) 1/2"])]
    quarter = [part_of([4.0], rank=2, shards=["Shard(0) 1/4"])]
    assert not frame_of(*rows, *columns, *quarter).present[0]

    columns.append(part_of([3.5], rank=3, shards=["Shard(1) 0/2"]))
    rows.append(part_of([4.0], rank=4, shards=["Shard(0) 1/2"]))
    frame = frame_of(*rows, *columns, *quarter)

    assert frame.num_partial == 0
    assert (frame.l2_min[0], frame.l2_max[0]) == (5.0, pytest.approx(math.hypot(3.5, 4.0)))


def test_the_running_maximum_of_shards_is_no_smaller_than_that_of_the_layer() -> None:
    parts = sharded(part_of, (0, 3.0, {"l2_max": 30.0}), (1, 4.0, {"l2_max": 40.0}), of=2)
    frame = frame_of(*parts)

    assert frame.l2_max[0] == pytest.approx(50.0)
    assert (frame.columns[0, 0], frame.l2_min[0]) == (5.0, 5.0)
    assert frame.total_norm == 5.0


def test_ranks_of_a_sharded_job_are_one_frame() -> None:
    job = Cluster(world=4, names=("w", "b"))
    for rank in range(4):
        job.open(rank)
        job.declare(rank, shards=(f"Shard(0) {rank}/4", ""))
    for rank, norm in enumerate((2.0, 4.0, 4.0, 0.0)):
        job.stats(rank, 0, [norm, 8.0])

    assert job.frame.l2_max.tolist() == [6.0, 8.0]
    assert job.frame.total_norm == pytest.approx(10.0)
    assert job.health()["status"] == "healthy"
    assert job.attempt.layers.numel == [10, 10]


def test_replicas_share_one_layout_and_other_shards_do_not() -> None:
    job = Cluster(world=4, names=("w",))
    for rank in range(4):
        job.open(rank)
        job.declare(rank, shards=(f"Replicate Shard(0) {rank % 2}/2",))
    layouts = [job.attempt.sessions[rank].manifests[1].layout for rank in range(4)]

    assert layouts[0] is layouts[2]
    assert layouts[1] is layouts[3]
    assert layouts[0] is not layouts[1]


def test_a_sharded_job_with_a_rank_missing_is_incomplete() -> None:
    job = Cluster(world=2, names=("w",))
    for rank in range(2):
        job.open(rank)
        job.declare(rank, shards=(f"Shard(0) {rank}/2",))
    job.stats(0, 0, [3.0])
    job.stats(1, 0, [4.0])
    job.stats(0, 1, [3.0])
    job.wait(5.5)
    health = job.health()

    assert (health["status"], health["step"]) == ("incomplete", 1)
    assert "shards of 1 layers missing at the last step" in health["reasons"]
    assert health["gradient_norm"]["last"] is None
    assert (health["gradient_norm"]["max"], health["gradient_norm"]["nonfinite_steps"]) == (5.0, 0)
    assert health["score"] == {"last": None, "mean": 1.0, "min": 1.0}
    assert health["layers"] == dict.fromkeys(("vanishing", "exploding", "nonfinite", "dead"), 0) | {
        "total": 1
    }


def test_a_layout_that_no_world_can_fill_is_not_called_healthy() -> None:
    job = Cluster(names=("w",))
    job.open()
    job.declare(0, shards=("Shard(0) 0/2",))
    job.stats(0, 0, [500.0])
    health = job.health()

    assert (health["status"], health["window"]["coverage"]) == ("incomplete", 1.0)
    assert health["reasons"] == ["shards of 1 layers missing at the last step"]
    assert health["alerts"]["pending"] == 0
