"""Ranks that disagree: on averaged gradients, and on the digests of replicated weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.frames.frame import RankRecord, RecordColumns
from gradwatch_server.core.frames.replicas import odd_ranks
from gradwatch_server.core.state_codec import decode, encode
from gradwatch_wire import Column
from tests.support.core import Cluster, frame_of, part_of, stats_of

MEAN = {"point": "backward", "reduction": "mean", "path": "foreach", "taken": True}
LAYERS = ("a", "b", "c")


def digest(*bits: int, l2: float = 1.0) -> dict[str, Column]:
    return {
        "weight_l2": Column.pack("<f8", [l2] * len(bits)),
        "weight_linf": Column.pack("<f8", [1.0] * len(bits)),
        "weight_bits": Column.pack("<u8", bits),
    }


@pytest.fixture
def job() -> Callable[..., Any]:
    """Make a job whose ranks average their gradients; `job.all(step)` is a step of all."""

    def make(world: int = 4, **settings: Any) -> Any:
        made: Any = Cluster(world=world, **settings).start()

        def go(step: int, odd: dict[int, Any] | None = None, **changes: Any) -> list[Any]:
            told: list[Any] = []
            for rank in range(world):
                own: dict[str, Any] = {"labels": MEAN, "l2": 1.0, "linf": [0.5] * 3} | changes
                own |= (odd or {}).get(rank, {})
                columns = own.pop("columns", None)
                l2 = own.pop("l2")
                record = stats_of(step, [l2] * 3, **own)
                told += made.send(
                    rank, replace(record, columns={**record.columns, **(columns or {})})
                )
            return [
                (a.group, a.state.value, a.severity.value)
                for a in told
                if a.rule == "rank_divergence"
            ]

        made.all = go
        return made

    return make


def test_equal_ranks_raise_nothing(job: Callable[..., Any]) -> None:
    """NaN on all of them is equal, too."""
    made = job()

    assert [made.all(step) for step in range(20)] == [[]] * 20
    assert made.all(20, l2=math.nan) == []
    assert made.all(21, l2=math.nan) == []


def test_two_unequal_frames_are_a_warning_and_three_critical(job: Callable[..., Any]) -> None:
    """The origin is the first of them, with the rank and the layer."""
    made = job()
    made.all(0)
    odd = {2: {"linf": [0.5, 0.6, 0.5]}}

    assert made.all(1, odd) == []
    assert made.all(2, odd) == [("all", "firing", "warning")]
    assert made.all(3, odd) == [("all", "firing", "critical")]
    alert = made.alerts[-1]
    assert (alert.origin.step, alert.origin.rank, alert.origin.layer) == (1, 2, "b")
    assert alert.origin.value == pytest.approx(1 / 6)
    assert ": gradients of b, off by " in alert.message


def test_one_unequal_frame_is_nothing(job: Callable[..., Any]) -> None:
    """A read may race with a write."""
    made = job()
    odd = {2: {"linf": [0.5, 0.6, 0.5]}}

    assert [made.all(step, None if step % 3 else odd) for step in range(12)] == [[]] * 12


def test_it_is_resolved_after_eight_equal_frames(job: Callable[..., Any]) -> None:
    made = job()
    for step in range(3):
        made.all(step, {1: {"linf": [0.4] * 3}})

    told = [made.all(step) for step in range(3, 11)]
    assert told == [[]] * 7 + [[("all", "resolved", "critical")]]


@pytest.mark.parametrize(
    ("value", "path", "fires"),
    [
        (1.0 + 5e-7, "foreach", False),
        (1.0 + 5e-6, "foreach", True),
        (1.0 + 5e-6, "triton", False),
        (1.0 + 5e-4, "triton", True),
        (math.nan, "foreach", True),
    ],
)
def test_sums_may_differ_by_rounding(
    job: Callable[..., Any], value: float, path: str, fires: bool
) -> None:
    made = job()
    odd = {3: {"l2": value, "labels": {**MEAN, "path": path}}}

    told = [made.all(step, odd) for step in range(2)]
    # What is not finite is told of by `nonfinite`, and this with it.
    severity = "info" if np.isnan(value) else "warning"
    assert told[-1] == ([("all", "firing", severity)] if fires else [])


def test_counts_are_compared_exactly(job: Callable[..., Any]) -> None:
    made = job()
    for step in range(2):
        made.all(step, {0: {"zeros": [1e9 + 1, 7, 7]}}, zeros=[1e9, 7, 7])

    assert (made.alerts[-1].origin.rank, made.alerts[-1].origin.layer) == (0, "a")


def test_of_two_ranks_nobody_knows_which_is_wrong(job: Callable[..., Any]) -> None:
    for world, odd in ((2, (1,)), (4, (2, 3))):
        made = job(world)
        for step in range(2):
            made.all(step, {rank: {"linf": [0.6] * 3} for rank in odd})
        origin = made.alerts[-1].origin
        assert (origin.rank, origin.ranks) == (None, tuple(range(world)))
        assert "odd one unknown" in made.alerts[-1].message


@pytest.mark.parametrize(
    "labels",
    [{**MEAN, "reduction": "none"}, {**MEAN, "reduction": "unknown"}, {**MEAN, "taken": False}],
)
def test_only_averaged_gradients_of_a_step_that_was_taken_have_to_be_equal(
    job: Callable[..., Any], labels: dict[str, Any]
) -> None:
    made = job()
    odd = {rank: {"linf": [float(rank)] * 3} for rank in range(4)}

    assert [made.all(step, odd, labels=labels) for step in range(4)] == [[]] * 4


def test_gradients_of_two_points_are_not_compared(job: Callable[..., Any]) -> None:
    made = job()
    odd = {1: {"linf": [0.1] * 3, "labels": {**MEAN, "point": "optimizer_step"}}}

    assert [made.all(step, odd) for step in range(4)] == [[]] * 4


def sharded(make_part: Any, rank: int, shard: str, linf: float) -> Any:
    return make_part([1.0], rank=rank, linf=[linf], shards=(shard,), labels=MEAN)


def test_shards_are_compared_with_their_replicas_only() -> None:
    def frame(odd: float) -> Any:
        parts = [
            sharded(part_of, rank, f"Shard(0) {rank % 2}/2", odd if rank == 3 else rank % 2 + 1.0)
            for rank in range(4)
        ]
        layouts = [parts[0].layout, parts[1].layout]
        return frame_of(*(replace(part, layout=layouts[part.rank % 2]) for part in parts))

    assert frame(2.0).disagreement.exact.tolist() == [0.0]
    assert frame(3.0).disagreement.exact == pytest.approx([1 / 3])


def test_one_rank_has_nobody_to_disagree_with() -> None:
    assert frame_of(part_of([1.0], labels=MEAN)).disagreement is None


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_rank_in_4096_is_named() -> None:
    norms = np.ones(3)
    first = part_of(norms, rank=0, labels=MEAN)
    parts = [replace(first, rank=rank) for rank in range(4096)]
    other = RecordColumns(0, {"l2": Column.pack("<f8", [1.0, 2.0, 1.0])})
    parts[4000] = replace(parts[4000], record=other)
    frame = frame_of(*parts)

    assert frame.disagreement is not None
    assert frame.disagreement.sums.tolist() == [0.0, 0.5, 0.0]
    assert odd_ranks(frame.parts, 1, weights=False)[0] == (4000,)


def test_one_digest_that_differs_is_critical_at_once(job: Callable[..., Any]) -> None:
    """The gradients are equal all the while; the largest sums of bits are compared exactly."""
    made = job(3)
    bits = (2**64 - 1, 2**63, 5)
    made.all(0, columns=digest(*bits))
    odd = {1: {"columns": digest(2**64 - 2, 2**63, 5, l2=1.5)}}

    assert made.all(100, odd, columns=digest(*bits)) == [("weights", "firing", "critical")]
    origin = made.alerts[-1].origin
    assert (origin.step, origin.rank, origin.layer, origin.kind) == (100, 1, "a", "weights")
    assert origin.value == pytest.approx(1 / 3)
    assert ": weights of a, " in made.alerts[-1].message


def test_frames_without_a_digest_say_nothing_of_weights(job: Callable[..., Any]) -> None:
    """The next equal digest ends it."""
    made = job(3)
    odd = {1: {"columns": digest(1, 2, 4)}}
    made.all(0, odd, columns=digest(1, 2, 3))

    assert [made.all(step) for step in range(1, 50)] == [[]] * 49
    assert made.all(50, odd, columns=digest(1, 2, 3)) == []
    assert made.all(51, columns=digest(1, 2, 3)) == [("weights", "resolved", "critical")]


def test_a_group_of_layers_may_be_called_weights(job: Callable[..., Any]) -> None:
    """The two are told apart."""
    made = job(3, groups={"weights": (0,)})
    made.all(0, {1: {"columns": digest(1, 2, 4)}}, columns=digest(1, 2, 3))

    assert [alert.group for alert in made.alerts] == ["weights of replicas"]


def test_open_frames_with_digests_outlive_a_restart() -> None:
    """Bit for bit."""
    bits = np.array([-1, 2**62, 3], dtype=np.int64)
    part = part_of([1.0, 1.0, 1.0], weight_bits=bits)
    again = decode(encode(part), RankRecord)

    assert again.weight_bits is not None
    assert again.weight_bits.tolist() == bits.tolist()


def test_of_two_ranks_the_one_that_was_not_reduced_is_known(job: Callable[..., Any]) -> None:
    made = job(world=2)
    reduced = {"l2": 0.8, "local_l2": [1.1] * 3}
    made.all(0, dict.fromkeys((0, 1), reduced))
    odd = {0: reduced, 1: {"l2": 1.3, "local_l2": [1.3] * 3, "linf": [0.6] * 3}}
    made.all(1, odd)
    made.all(2, odd)

    origin = made.alerts[-1].origin
    assert (origin.rank, origin.step) == (1, 1)
    assert not any("unknown" in note for note in origin.notes)


@pytest.mark.parametrize("local", [[1.1, 1.2], [0.8, 1.3], [None, 1.3], [-1.0, 1.3]], ids=str)
def test_of_two_ranks_nobody_is_named_without_evidence(
    job: Callable[..., Any], local: list[Any]
) -> None:
    made = job(world=2)
    odd: dict[int, Any] = {0: {"l2": 0.8}, 1: {"l2": 1.3, "linf": [0.6] * 3}}
    for rank, norm in enumerate(local):
        if norm is not None:
            odd[rank]["local_l2"] = [norm] * 3
    made.all(0, odd)
    made.all(1, odd)

    origin = made.alerts[-1].origin
    assert (origin.rank, origin.ranks) == (None, (0, 1))
    assert "odd one unknown" in origin.notes


def test_of_two_replicas_the_one_whose_weights_jumped_is_known(job: Callable[..., Any]) -> None:
    made = job(world=2)
    for step in range(30):
        made.all(step, columns=digest(1, 2, 3) if step % 10 == 0 else None)
    moved, damaged = digest(4, 5, 6, l2=1.01), digest(4, 9, 6, l2=1.7)
    told = made.all(30, {0: {"columns": damaged}, 1: {"columns": moved}})

    assert told == [("weights", "firing", "critical")]
    alert = made.alerts[-1]
    assert (alert.origin.rank, alert.origin.layer) == (0, "b")
    assert (alert.origin.step, alert.origin.last_good_step) == (30, 20)
    assert "equal at step 20" in alert.origin.notes


def test_of_two_replicas_that_both_moved_none_is_named(job: Callable[..., Any]) -> None:
    """Weights move by training, too; and without a digest that was equal nobody knows how far."""
    made = job(world=2)
    ours, theirs = digest(4, 5, 6, l2=1.2), digest(4, 9, 6, l2=1.7)
    made.all(0, columns=digest(1, 2, 3))
    made.all(1, {0: {"columns": ours}, 1: {"columns": theirs}})
    assert made.alerts[-1].origin.rank is None

    late = job(world=2, run="other")
    late.all(0, {0: {"columns": digest(4, 5, 6, l2=1.01)}, 1: {"columns": theirs}})
    origin = late.alerts[-1].origin
    assert (origin.rank, origin.last_good_step) == (None, None)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_replicas_of_one_shard_differ_whichever_shard_comes_last(order: tuple[int, ...]) -> None:
    """Ranks 0 and 2 hold one half of a layer, 1 and 3 the other; rank 2 has another weight."""
    job = Cluster(world=4, names=("cut",))
    for rank in range(4):
        job.open(rank)
        job.declare(rank, shards=(f"Shard(0) {rank % 2}/2",))
    told: list[Any] = []
    for rank in order:
        own = digest(12, l2=2.0) if rank == 2 else digest(7 + rank % 2)
        record = stats_of(0, [1.0])
        told += job.send(rank, replace(record, columns={**record.columns, **own}))

    (alert,) = told
    assert (alert.rule, alert.origin.value) == ("rank_divergence", pytest.approx(0.5))
    assert set(alert.origin.ranks) == {0, 2}


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
@pytest.mark.parametrize(("shard", "is_told"), [("Shard(0)", True), ("expert", False)])
def test_gradients_of_one_shard_differ_whichever_shard_comes_last(
    order: tuple[int, ...], shard: str, is_told: bool
) -> None:
    """Gradients of experts are not compared: the script averages them, nobody knows when."""
    job = Cluster(world=4, names=("cut",))
    for rank in range(4):
        job.open(rank)
        job.declare(rank, shards=(f"{shard} {rank % 2}/2",))
    told = [
        alert
        for step in range(2)
        for rank in order
        for alert in job.send(
            rank, stats_of(step, [1.0], linf=[0.6 if rank == 2 else 0.5], labels=MEAN)
        )
    ]

    assert [alert.rule for alert in told] == ["rank_divergence"] * is_told
    assert not told or set(told[0].origin.ranks) == {0, 2}


@pytest.mark.parametrize("odd", [None, 1])
def test_ranks_that_hold_the_same_and_other_layers_beside_it_are_compared(odd: int | None) -> None:
    """Tensor parallel: each rank has its part of one layer, and the whole of another."""
    job = Cluster(world=2, names=("norm", "cut"))
    told: list[Any] = []
    for rank in range(2):
        job.open(rank)
        job.declare(rank, shards=("", f"tensor {rank}/2"))
        record = stats_of(0, [1.0, 1.0])
        own = digest(7 + (rank == odd), 20 + rank)
        told += job.send(rank, replace(record, columns={**record.columns, **own}))

    assert [alert.layers for alert in told] == ([] if odd is None else [("norm",)])
