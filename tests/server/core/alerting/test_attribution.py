"""The rank and the layer that a NaN began at, where they can be known."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.alerting.attribution import (
    first_nonfinite,
    nonfinite_ranks,
    rising_ranks,
)
from tests.support.core import frame_of, part_of

NAN, INF = math.nan, math.inf

RANK_TABLE = [
    # An all-reduce carried the NaN of one rank to all; what is local tells whose it is.
    ("its own loss", [{"loss": 1.0}, {"loss": NAN}], (1,)),
    ("its own loss is Inf", [{"loss": INF}, {"loss": 1.0}], (0,)),
    ("its local probe", [{"local_probe": NAN}, {"local_probe": 2.0}], (0,)),
    (
        "the probe beside a fine loss",
        [{"loss": 1.0, "local_probe": INF}, {"loss": 1.0, "local_probe": 1.0}],
        (0,),
    ),
    ("several losses", [{"loss": NAN}, {"loss": NAN}], (0, 1)),
    ("one loss, maybe of all ranks", [{"loss": NAN}, {}], ()),
    (
        "the probe beside the loss of all ranks",
        [{"loss": NAN, "local_probe": 2.0}, {"loss": NAN, "local_probe": NAN}],
        (1,),
    ),
    (
        "the loss where all probes are bad",
        [{"loss": 1.0, "local_probe": NAN}, {"loss": NAN, "local_probe": NAN}],
        (1,),
    ),
    ("all probes", [{"local_probe": NAN}, {"local_probe": INF}], (0, 1)),
    ("one probe, the other rank has none", [{"local_probe": NAN}, {}], ()),
    ("losses that are all fine", [{"loss": 1.0}, {"loss": 1.0}], ()),
    ("nothing local at all", [{}, {}], ()),
]


@pytest.mark.parametrize(
    ("scalars", "ranks"), [row[1:] for row in RANK_TABLE], ids=[row[0] for row in RANK_TABLE]
)
def test_the_rank_is_known_from_what_no_reduction_reaches(
    scalars: list[dict[str, float]], ranks: tuple[int, ...]
) -> None:
    parts = [
        part_of([NAN], rank=rank, scalars=scalar, labels={"reduction": "mean"})
        for rank, scalar in enumerate(scalars)
    ]

    assert nonfinite_ranks(frame_of(*parts)) == ranks


def test_where_only_some_ranks_are_bad_they_are_known() -> None:
    parts = [part_of([NAN if rank == 2 else 1.0], rank=rank) for rank in range(4)]
    assert nonfinite_ranks(frame_of(*parts)) == (2,)

    parts[0] = part_of([INF], rank=0)
    assert nonfinite_ranks(frame_of(*parts)) == (0, 2)


def test_gradients_without_a_reduction_are_each_ranks_own() -> None:
    parts = [part_of([NAN], rank=rank, labels={"reduction": "none"}) for rank in (0, 1)]

    assert nonfinite_ranks(frame_of(*parts)) == (0, 1)
    assert nonfinite_ranks(frame_of(*parts, world=3)) == (0, 1)


def test_a_missing_rank_makes_the_others_uncertain() -> None:
    bad = part_of([NAN], rank=0)
    good = part_of([1.0], rank=1)

    assert nonfinite_ranks(frame_of(bad, world=2)) == ()
    assert nonfinite_ranks(frame_of(bad, good, world=3)) == ()


def test_the_only_rank_there_is_is_the_one() -> None:
    for labels in ({}, {"reduction": "none"}, {"reduction": "mean"}):
        assert nonfinite_ranks(frame_of(part_of([NAN], labels=labels))) == (0,)


def test_a_lone_rank_with_another_number_is_named_by_it() -> None:
    """Ranks are the job's own numbers, not places in a list."""
    frame = frame_of(part_of([1.0], rank=6), part_of([NAN], rank=5))

    assert nonfinite_ranks(frame) == (5,)


@pytest.mark.parametrize("world", [2, 3])
def test_a_bad_piece_does_not_tell_whose_fault_it_is(world: int) -> None:
    """A reduce-scatter puts any rank's NaN where the shard lies; the holder is not named."""
    parts = [
        part_of([norm], rank=rank, shards=[f"Shard(0) {rank}/2"], labels={"reduction": "mean"})
        for rank, norm in enumerate((1.0, NAN))
    ]
    assert nonfinite_ranks(frame_of(*parts, world=world)) == ()

    parts = [
        dataclasses.replace(part, scalars={"loss": loss})
        for part, loss in zip(parts, (NAN, 1.0), strict=True)
    ]
    assert nonfinite_ranks(frame_of(*parts, world=world)) == (0,)


def test_a_bad_piece_of_what_was_not_reduced_is_its_ranks_own() -> None:
    parts = [
        part_of([norm], rank=rank, shards=[f"{rank}/2"], labels={"reduction": "none"})
        for rank, norm in enumerate((1.0, NAN))
    ]

    assert nonfinite_ranks(frame_of(*parts)) == (1,)


LOCAL_TABLE = [
    ("one is bad", [[1.0, NAN], [1.0, 1.0]], (0,)),
    ("all are bad", [[1.0, NAN], [1.0, INF]], (0, 1)),
    ("none is: the reduction overflowed", [[1.0, 1e38], [1.0, 1e38]], ()),
    ("none is known", [[1.0, -1.0], [1.0, -1.0]], ()),
    ("a layer that is fine has none", [[NAN, 1.0], [1.0, 1.0]], ()),
]


@pytest.mark.parametrize(
    ("local", "ranks"), [row[1:] for row in LOCAL_TABLE], ids=[row[0] for row in LOCAL_TABLE]
)
def test_the_gradient_before_the_reduction_decides(
    local: list[list[float]], ranks: tuple[int, ...]
) -> None:
    """Layer `b` is NaN on all ranks afterwards; their own gradients say who it was."""
    parts = [part_of([1.0, NAN], rank=r, local_l2=own) for r, own in enumerate(local)]

    assert nonfinite_ranks(frame_of(*parts)) == ranks


def test_a_norm_of_a_shard_is_never_the_ranks_own() -> None:
    """A reduce-scatter has put it there, whatever the record calls it (C1)."""

    def ranks(*shards: str) -> Any:
        return nonfinite_ranks(
            frame_of(
                part_of([NAN], rank=0, shards=[shards[0]], local_l2=[NAN]),
                part_of([1.0], rank=1, shards=[shards[1]], local_l2=[1.0]),
            )
        )

    assert ranks("Shard(0) 0/2", "Shard(0) 1/2") == ()
    assert ranks("", "") == (0,)


def test_a_rank_without_a_norm_of_its_own_shows_nothing() -> None:
    """A negative one stands for what was not measured (C1)."""
    own = [(NAN, 1.0), (NAN, -1.0), (-1.0, -1.0)]
    found = [
        nonfinite_ranks(
            frame_of(*(part_of([NAN], rank=r, local_l2=[norm]) for r, norm in enumerate(norms)))
        )
        for norms in own
    ]

    assert found == [(0,), (), ()]


def test_the_gradient_before_the_reduction_counts_more_than_the_loss() -> None:
    """A loss that is reported may be another one; without a bad local gradient it decides."""
    scalars = [{"loss": 1.0}, {"loss": NAN}]

    def ranks(*local: float) -> Any:
        return nonfinite_ranks(
            frame_of(
                *(
                    part_of([NAN], rank=r, local_l2=[norm], scalars=scalars[r])
                    for r, norm in enumerate(local)
                )
            )
        )

    assert ranks(NAN, 1.0) == (0,)
    assert ranks(1.0, 1.0) == (1,)


def test_losses_that_are_all_bad_show_on_all_ranks() -> None:
    def ranks(*losses: float) -> Any:
        parts = [part_of([1.0], rank=r, scalars={"loss": x}) for r, x in enumerate(losses)]
        return nonfinite_ranks(frame_of(*parts))

    assert ranks(NAN, NAN) == (0, 1)
    assert ranks(1.0, INF) == (1,)


def test_what_ranks_show_at_a_later_step_is_no_evidence() -> None:
    """NaN weights make every rank bad by itself; the first bad step's probe decides (C13)."""

    def ranks(*probes: float, **more: Any) -> Any:
        parts = [
            part_of(
                [NAN],
                rank=rank,
                scalars={"loss": NAN, "first_nonfinite_step": 5.0, "local_probe": probe},
                **more,
            )
            for rank, probe in enumerate(probes)
        ]
        return nonfinite_ranks(frame_of(*parts, after=3))

    assert ranks(1.0, NAN) == (1,)
    assert ranks(NAN, NAN) == (0, 1)
    assert ranks(1.0, 1.0) == ()
    assert ranks(1.0, NAN, local_l2=[NAN]) == (1,)


def test_only_ranks_that_were_bad_first_are_named() -> None:
    parts = [
        part_of([1.0], rank=rank, l2_max=[NAN], scalars={"first_nonfinite_step": step})
        for rank, step in enumerate((6.0, 5.0))
    ]

    assert nonfinite_ranks(frame_of(*parts, after=3)) == (1,)


@pytest.mark.parametrize("bad", [[0, 1, 2, 3], [0, 2], [3], [1, 3]])
def test_the_layer_is_the_last_bad_one_in_forward_order(bad: list[int]) -> None:
    """The backward pass computed its gradient first; from there NaN flowed to those before it."""
    frame = frame_of(part_of([NAN if i in bad else 1.0 for i in range(4)]))

    assert first_nonfinite(frame, frame.nonfinite) == bad[-1]


def test_forward_order_is_that_of_the_record_not_of_the_places() -> None:
    """A layer that joined late has the last place, wherever it is in the forward pass."""
    frame = frame_of(part_of([1.0, NAN, NAN], index=[0, 2, 1]))

    assert first_nonfinite(frame, frame.nonfinite) == 1


def test_without_a_known_order_no_layer_is_guessed() -> None:
    one = frame_of(part_of([1.0, NAN, 1.0], ordered=False))
    two = frame_of(part_of([1.0, NAN, NAN], ordered=False))

    assert first_nonfinite(one, one.nonfinite) == 1
    assert first_nonfinite(two, two.nonfinite) is None


def test_layers_of_different_records_have_no_order() -> None:
    frame = frame_of(part_of([1.0, NAN], index=[0, 1]), part_of([NAN, 1.0], index=[2, 3], rank=1))
    assert first_nonfinite(frame, frame.nonfinite) is None

    frame = frame_of(part_of([NAN, NAN], index=[0, 1]), part_of([1.0], index=[2], rank=1))
    assert first_nonfinite(frame, frame.nonfinite) == 1


def test_records_that_contradict_each_other_name_no_layer() -> None:
    frame = frame_of(part_of([NAN, NAN], index=[0, 1]), part_of([NAN, NAN], index=[1, 0], rank=1))

    assert first_nonfinite(frame, frame.nonfinite) is None


MEAN = {"reduction": "mean", "point": "backward", "path": "foreach", "taken": True}

RISE_TABLE: list[tuple[str, list[dict[str, Any]], tuple[int, ...]]] = [
    # Two ranks, a module of two layers; the reduced norms have risen.
    ("its own gradient", [{"local_l2": [30.0, 40.0]}, {"local_l2": [3.0, 3.0]}], (0,)),
    ("in one layer of two", [{"local_l2": [30.0, 1.0]}, {"local_l2": [1.0, 3.0]}], (0,)),
    ("both alike", [{"local_l2": [30.0, 40.0]}, {"local_l2": [13.0, 13.0]}], ()),
    (
        "both alike, though one loss is high",
        [{"local_l2": [9.0, 9.0], "loss": 50.0}, {"local_l2": [9.0, 9.0], "loss": 1.0}],
        (),
    ),
    ("one gradient is not known", [{"local_l2": [30.0, 40.0]}, {}], ()),
    ("one is not finite", [{"local_l2": [INF, 40.0]}, {"local_l2": [3.0, 3.0]}], ()),
    ("not known of a layer", [{"local_l2": [-1.0, 40.0]}, {"local_l2": [-1.0, 3.0]}], ()),
    ("what it has after the reduction", [{"l2": [9.0, 9.0]}, {"l2": [1.0, 1.0]}], (0,)),
    ("its loss", [{"loss": 1.1}, {"loss": 40.0}], (1,)),
    ("losses that are as high", [{"loss": 20.0}, {"loss": 40.0}], ()),
    ("a loss above the other, but usual", [{"loss": 0.1}, {"loss": 1.2}], ()),
    ("nothing of its own", [{}, {}], ()),
]


@pytest.mark.parametrize(
    ("given", "ranks"), [row[1:] for row in RISE_TABLE], ids=[row[0] for row in RISE_TABLE]
)
def test_a_rise_is_of_the_rank_that_stands_out(
    given: list[dict[str, Any]], ranks: tuple[int, ...]
) -> None:
    parts = []
    for rank, own in enumerate(given):
        settings = {name: value for name, value in own.items() if name == "local_l2"}
        scalars = {name: value for name, value in own.items() if name == "loss"}
        l2 = own.get("l2", [9.0, 9.0])
        parts.append(
            part_of(l2, rank=rank, linf=[1.0, 1.0], scalars=scalars, labels=MEAN, **settings)
        )
    parts = [dataclasses.replace(part, layout=parts[0].layout) for part in parts]  # replicas
    frame = frame_of(*parts)
    flagged = np.ones(2, dtype=np.bool_)

    assert rising_ranks(frame, flagged, 1.0) == ranks


def test_a_rank_that_is_not_there_may_be_the_one() -> None:
    parts = [part_of([9.0], rank=rank, local_l2=[30.0 - 29.0 * rank]) for rank in (0, 1)]
    only = np.ones(1, dtype=np.bool_)

    assert rising_ranks(frame_of(*parts), only, None) == (0,)
    assert rising_ranks(frame_of(*parts, world=3), only, None) == ()


def test_of_many_ranks_two_that_stand_out_are_not_one() -> None:
    parts = [part_of([9.0], rank=r, local_l2=[n]) for r, n in enumerate([500.0, 1.0, 101.0, 1.0])]

    assert rising_ranks(frame_of(*parts), np.ones(1, dtype=np.bool_), None) == ()


def test_ranks_without_the_layers_are_not_asked() -> None:
    """Ranks 0 and 1 are one pipeline stage, 2 and 3 the other; rank 3 has the bad batch."""
    own = [[3.0], [3.1], [3.0], [300.0]]
    parts = [part_of([9.0], rank=r, index=[r // 2], local_l2=own[r]) for r in range(4)]

    assert rising_ranks(frame_of(*parts), np.array([False, True]), None) == (3,)
    assert rising_ranks(frame_of(*parts), np.array([True, False]), None) == ()


@pytest.mark.parametrize(("reduction", "ranks"), [("unknown", ()), ("none", (1,))])
def test_who_alone_holds_a_layer_may_have_got_its_nan_from_another_rank(
    reduction: str, ranks: tuple[int, ...]
) -> None:
    """A sharded optimizer: each rank has layers of its own, into which all were reduced."""
    parts = [
        part_of(
            [NAN if rank == 1 else 1.0], rank=rank, index=[rank], labels={"reduction": reduction}
        )
        for rank in range(2)
    ]

    assert nonfinite_ranks(frame_of(*parts)) == ranks


def test_a_replica_that_is_fine_shows_that_no_reduction_made_the_other_bad() -> None:
    """Also where the two have other layers beside it, in another order."""
    parts = [part_of([1.0, NAN], rank=0, index=[0, 1]), part_of([1.0, 2.0], rank=1, index=[1, 2])]

    assert nonfinite_ranks(frame_of(*parts)) == (0,)
