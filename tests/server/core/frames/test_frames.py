"""Frames: which records make one, when it closes, and what its numbers are."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwatch_server.core.attempt.attempt import CLOSES
from gradwatch_server.core.entries import Tick
from gradwatch_server.core.frames import assembler
from gradwatch_server.core.frames.layout import Layout
from gradwatch_server.core.frames.merging import BLOCK, total_norm
from gradwatch_server.core.frames.rows import FRAME_COLUMNS
from tests.support.core import Cluster, frame_of, part_of


def test_a_frame_waits_for_all_live_ranks() -> None:
    job = Cluster(world=3).start()

    job.stats(0, 0)
    job.stats(2, 0)
    assert job.closed == []
    job.stats(1, 0)

    assert job.closed == [0]
    assert job.frame.coverage == 1.0


def test_a_step_in_several_records_closes_with_the_last() -> None:
    job = Cluster(world=2, names=("gen", "critic"))
    for rank in (0, 1):
        job.open(rank)
        job.declare(rank, ["gen"], manifest_id=1)
        job.declare(rank, ["critic"], manifest_id=2)

    for rank in (0, 1):
        job.stats(rank, 0, [3.0], manifest_id=1, part=0, parts=2)
        assert job.closed == []
        job.stats(rank, 0, [4.0], manifest_id=2, part=1, parts=2)

    assert job.closed == [0]
    assert job.frame.l2_max.tolist() == [3.0, 4.0]
    assert job.frame.total_norm == pytest.approx(5.0)


def test_a_rank_that_skips_its_last_part_is_done_with_the_step_when_it_sends_the_next() -> None:
    """An optimizer that does not step every time must not hold the frame back."""
    job = Cluster(names=("gen", "critic"))
    job.open()
    job.declare(0, ["gen"], manifest_id=1)
    job.declare(0, ["critic"], manifest_id=2)

    job.stats(0, 0, [3.0], manifest_id=1, part=0, parts=2)
    assert job.closed == []
    job.stats(0, 1, [3.0], manifest_id=1, part=0, parts=2)

    assert job.closed == [0]


def test_the_same_part_twice_does_not_count_twice() -> None:
    """A second record of a rank's step would falsify the total norm: it is counted as late."""
    job = Cluster(world=2, names=("a",)).start()

    job.stats(0, 0, [3.0])
    job.stats(0, 0, [4.0])
    job.stats(1, 0, [3.0])

    assert job.frame.total_norm == 3.0
    assert job.attempt.counts.num_late == 1


def test_a_frame_closes_without_a_rank_that_is_late_by_time() -> None:
    """5 s after its first record, by the times in the log, and not before."""
    job = Cluster(world=2).start()
    job.stats(0, 0)

    job.wait(4.9)
    assert job.closed == []
    job.wait(0.1)

    assert job.closed == [0]
    assert job.frame.coverage == 0.5


def test_another_rank_does_not_make_it_wait_longer() -> None:
    """Lateness counts from the first record, however late the second came."""
    job = Cluster(world=3).start()
    job.stats(0, 0)
    job.wait(4)
    job.stats(1, 0)
    job.wait(0.9)
    assert job.closed == []

    job.wait(0.1)

    assert job.closed == [0]


def test_time_passes_by_records_too() -> None:
    job = Cluster(world=2).start()
    job.stats(0, 0)
    job.now_ns += 6_000_000_000

    job.stats(0, 1)

    assert job.closed == [0]


def test_an_entry_closes_few_of_many_overdue_frames() -> None:
    """The others with the next ones: the engine adds these while frames are due."""
    job = Cluster(world=2).start()
    for step in range(3 * CLOSES):
        job.stats(0, step)
    job.now_ns += 6_000_000_000

    job.put(Tick())
    assert job.closed == [*range(CLOSES)]
    assert job.attempt.open.frames.has_due
    for _ in range(3):
        job.put(Tick())
    assert job.closed == [*range(3 * CLOSES)]
    assert not job.attempt.open.frames.has_due


def test_a_rank_that_sends_newer_steps_is_not_waited_for() -> None:
    """Records of a rank come in order, so what it has not sent of an older step never comes."""
    job = Cluster(world=2).start()
    job.stats(0, 0)
    job.stats(0, 1)
    assert job.closed == []

    job.stats(1, 1)

    assert job.closed == [0, 1]
    assert job.attempt.window.series().coverage.tolist() == [0.5, 1.0]


def test_frames_close_when_too_many_records_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank may run ahead by its backlog, but not without bound: the oldest frames close."""
    monkeypatch.setattr(assembler, "MAX_HELD_RECORDS", 40)
    job = Cluster(world=2).start()

    for step in range(40):
        job.stats(0, step)
    assert job.closed == []
    job.stats(0, 40)
    job.stats(0, 41)

    assert job.closed == [0, 1]


def test_late_records_are_counted_and_change_nothing() -> None:
    job = Cluster(world=2, names=("a",)).start()
    job.stats(0, 0, [1.0])
    job.wait(6)

    job.stats(1, 0, [500.0])

    assert job.attempt.counts.num_late == 1
    assert job.frame.l2_max.tolist() == [1.0]
    assert job.health()["records"]["late"] == 1


def test_frames_close_in_the_order_of_steps() -> None:
    """A rank that runs ahead opens newer frames; they wait for the older one."""
    job = Cluster(world=2).start()
    for step in (0, 1, 2):
        job.stats(0, step)

    job.stats(1, 0)
    assert job.closed == [0]
    job.stats(1, 1)
    job.stats(1, 2)

    assert job.closed == [0, 1, 2]


@pytest.mark.parametrize("leave", ["bye", "lose"])
def test_a_rank_that_is_gone_is_no_longer_waited_for(leave: str) -> None:
    job = Cluster(world=2).start()
    job.stats(0, 0)
    job.stats(0, 1)

    getattr(job, leave)(1)

    assert job.closed == [0, 1]
    assert job.frame.coverage == 0.5


def test_a_lost_rank_that_is_back_is_waited_for_again() -> None:
    job = Cluster(world=2).start()
    for step in (0, 1):
        job.lose(1)
        if step == 0:
            job.back(1)
        else:
            job.event(1, "mark")

        job.stats(0, step)
        assert job.closed == list(range(step))
        job.stats(1, step)

        assert job.frame.coverage == 1.0


def test_ranks_that_never_attached_are_waited_for_only_at_the_beginning() -> None:
    job = Cluster(world=2)
    job.open(0)
    job.declare(0)

    job.stats(0, 0)
    assert job.closed == []
    job.wait(5)
    assert job.closed == [0]
    job.wait(5)
    job.stats(0, 1)

    assert job.closed == [0, 1]
    assert job.frame.coverage == 0.5


def test_layers_come_and_go() -> None:
    """A step may have other layers than the one before; absent ones are absent, not zero."""
    job = Cluster(names=("a", "b"))
    job.open()
    job.declare(0, ["a", "b"], manifest_id=1)
    job.stats(0, 0, [1.0, 2.0])
    job.declare(0, ["b", "late"], manifest_id=2)

    job.stats(0, 1, [5.0, 6.0], manifest_id=2)
    assert job.attempt.layers.names == ["a", "b", "late"]
    assert job.frame.present.tolist() == [False, True, True]
    assert np.isnan(job.frame.l2_max).tolist() == [True, False, False]
    job.stats(0, 2, [1.0, 2.0], manifest_id=1)

    assert job.frame.present.tolist() == [True, True, False]
    assert job.attempt.window.before(2, 5) == ((1, 6.0),)


def test_ranks_may_name_their_layers_in_different_order() -> None:
    """Columns go by name, not by place."""
    job = Cluster(world=2)
    for rank, names in ((0, ["a", "b"]), (1, ["b", "a"])):
        job.open(rank)
        job.declare(rank, names)

    job.stats(0, 0, [1.0, 20.0])
    job.stats(1, 0, [21.0, 2.0])

    assert job.frame.l2_max.tolist() == [2.0, 21.0]


def test_no_layers_at_all_make_a_frame() -> None:
    """A manifest may be empty; its steps count, and nothing is wrong with them."""
    job = Cluster(names=()).start()

    job.step(0, [])

    assert job.closed == [0]
    assert job.frame.total_norm == 0.0
    assert job.health()["score"]["last"] == 1.0


def test_the_loss_is_the_mean_of_the_ranks_that_gave_one() -> None:
    job = Cluster(world=3).start()
    for step, losses in enumerate(
        [(None, None, None), (1.0, None, 3.0), (1.0, math.nan, 2.0), (1e308, 1e308, 1e308)]
    ):
        for rank, loss in enumerate(losses):
            job.stats(rank, step, loss=loss)

    nothing, mean, nan, large = job.attempt.window.series().loss.tolist()
    assert math.isnan(nothing)
    assert mean == 2.0
    assert math.isnan(nan)
    assert large == pytest.approx(1e308)
    assert job.attempt.first_bad.step == 2


@pytest.mark.parametrize(
    ("given", "mean"),
    [
        ([(1.0, 30.0), (4.0, 10.0)], 1.75),
        ([(1.0, 30.0), (4.0, 10.0), (None, None)], 1.75),
        ([(1.0, 30.0), (4.0, None)], 2.5),
        ([(1.0, 30.0), (4.0, 0.0)], 2.5),
        ([(1.0, 30.0), (4.0, math.nan)], 2.5),
        ([(1.0, 30.0), (4.0, math.inf)], 2.5),
        ([(1.0, 1e308), (3.0, 1e308), (2.0, 1e308)], 2.0),
        ([(1e308, 2.0), (1e308, 2.0)], 1e308),
    ],
)
def test_the_loss_is_weighted_by_samples_where_all_count_theirs(
    given: list[Any], mean: float
) -> None:
    """A rank with more samples weighs more; with one number missing all weigh the same."""
    parts = []
    for rank, (loss, size) in enumerate(given):
        scalars = {"loss": loss, "batch_size": size}
        parts.append(
            part_of([1.0], rank=rank, scalars={k: v for k, v in scalars.items() if v is not None})
        )

    assert frame_of(*parts).loss == pytest.approx(mean)


def test_the_largest_norm_is_that_of_all_collections_since_the_last_record() -> None:
    """An explosion between records is evaluated; what vanishes, and the total, are of the step."""
    frame = frame_of(
        part_of([1.0, 2.0, 3.0], l2_max=[1.0, 500.0, 1.0]), part_of([1.0, 1.0, 3.5], rank=1)
    )

    assert frame.l2_max.tolist() == [1.0, 500.0, 3.5]
    assert frame.l2_min.tolist() == [1.0, 1.0, 3.0]
    assert frame.columns[0].tolist() == [1.0, 2.0, 3.5]
    assert frame.total_norm == pytest.approx(math.hypot(1.0, 1.0, 3.5))
    assert not frame.nonfinite.any()


@pytest.mark.parametrize("peak", [math.nan, math.inf])
def test_a_nonfinite_collection_before_the_last_is_seen(peak: float) -> None:
    bad, good = part_of([1.0, 1.0], l2_max=[1.0, peak]), part_of([1.0, 1.0], rank=1)
    alike = dataclasses.replace(good, layout=bad.layout)
    for parts, order in itertools.product(([bad, good], [bad, alike]), ((0, 1), (1, 0))):
        frame = frame_of(*(parts[at] for at in order))

        assert frame.nonfinite.tolist() == [False, True]
        assert frame.parts[order.index(0)].nonfinite.tolist() == [False, True]


@pytest.mark.parametrize(
    ("named", "step"),
    [
        ((5.0,), 5),
        ((7.0, 4.0), 4),
        ((math.nan, 6.0), 6),
        ((math.nan,), 7),
        ((math.inf,), 7),
        ((8.0,), 7),
        ((3.0,), 7),
        ((-1.0, 1e300), 7),
    ],
)
def test_the_bad_step_is_the_earliest_that_was_collected_for_this_frame(
    named: tuple[float, ...], step: int
) -> None:
    parts = [
        part_of([math.nan], rank=rank, scalars={"first_nonfinite_step": value})
        for rank, value in enumerate(named)
    ]

    assert frame_of(*parts, step=7, after=3).bad_step == step


def test_the_total_norm_is_that_of_the_largest_rank() -> None:
    """Ranks are not added up: replicated gradients are the same gradient."""
    frame = frame_of(part_of([3.0, 4.0], rank=0), part_of([6.0, 8.0], rank=1))

    assert frame.total_norm == pytest.approx(10.0)


@pytest.mark.parametrize("length", [BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_the_total_norm_of_very_many_layers_has_them_all(length: int) -> None:
    l2 = np.arange(1.0, length + 1)
    assert total_norm(l2) == pytest.approx(math.sqrt(length * (length + 1) * (2 * length + 1) / 6))
    assert math.isnan(total_norm(np.append(l2, math.nan)))
    assert total_norm(np.append(l2, math.inf)) == math.inf


@pytest.mark.parametrize(
    ("l2", "expected"),
    [
        ([], 0.0),
        ([0.0, 0.0], 0.0),
        ([3.0, 4.0], 5.0),
        ([3e200, 4e200], 5e200),
        ([3e-200, 4e-200], 5e-200),
        ([5e-324], 5e-324),
        ([1.7e308], 1.7e308),
        ([1e160, 1.0], 1e160),
        ([math.inf, 1.0], math.inf),
        ([math.inf, math.nan], math.nan),
        ([math.nan, 0.0], math.nan),
    ],
)
def test_the_total_norm_is_right_over_the_whole_range(l2: list[float], expected: float) -> None:
    """Squares neither overflow nor vanish."""
    assert total_norm(np.array(l2)) == pytest.approx(expected, rel=1e-12, nan_ok=True)


@pytest.mark.slow
@given(st.lists(st.floats(0.0, 1.7e300), min_size=1, max_size=40))
@settings(max_examples=200)
def test_the_total_norm_agrees_with_hypot(l2: list[float]) -> None:
    """The scaled sum is what Python's own accurate `hypot` gives."""
    assert total_norm(np.array(l2)) == pytest.approx(math.hypot(*l2), rel=1e-12, abs=1e-323)


def test_a_closed_frame_cannot_be_written() -> None:
    """Readers of other threads hold it."""
    frame = frame_of(part_of([1.0]))

    for array in (frame.present, frame.nonfinite, frame.l2_max, frame.l2_min, frame.columns):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


MEASURES = st.sampled_from([0.0, 1.0, 2.5, 1e300, -1.0, math.nan, math.inf, -math.inf])
LAYOUTS: tuple[list[int], ...] = ([0, 1, 2], [2, 0], [3, 1], [])
PARTS = st.lists(
    st.tuples(
        st.sampled_from(range(len(LAYOUTS))),
        st.lists(MEASURES, min_size=3, max_size=3),
        st.dictionaries(
            st.sampled_from(FRAME_COLUMNS[1:]),
            st.lists(MEASURES, min_size=3, max_size=3),
            max_size=3,
        ),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@given(parts=PARTS)
@settings(max_examples=300)
def test_a_frame_is_what_a_plain_loop_makes_of_its_records(parts: list[Any]) -> None:
    """Layer by layer: the extremes, a NaN norm before all, counts that are there, bad if any is."""
    layouts = [Layout(np.array(layout, dtype=np.int64)) for layout in LAYOUTS]
    made, seen = [], []
    for rank, (which, l2, more) in enumerate(parts):
        count = len(LAYOUTS[which])
        part = part_of(
            l2[:count], rank=rank, **{name: values[:count] for name, values in more.items()}
        )
        made.append(dataclasses.replace(part, layout=layouts[which]))  # shared, as ranks do
        for place, layer in enumerate(LAYOUTS[which]):
            seen.append((layer, l2[place], {name: v[place] for name, v in more.items()}))
    frame = frame_of(*made)

    for layer in range(len(frame.present)):
        norms = [l2 for at, l2, _ in seen if at == layer]
        nan = any(map(math.isnan, norms))
        assert frame.present[layer] == bool(norms)
        counts: dict[str, list[float]] = {name: [] for name in FRAME_COLUMNS[1:]}
        for at, _, more in seen:
            for name, value in more.items():
                if at == layer and not math.isnan(value):
                    counts[name].append(value)
        expected = [
            math.nan if nan else max(norms, default=math.nan),
            *(max(counts[name], default=math.nan) for name in FRAME_COLUMNS[1:]),
        ]
        np.testing.assert_array_equal(frame.columns[:, layer], expected)
        np.testing.assert_array_equal(
            frame.l2_min[layer], math.nan if nan else min(norms, default=math.nan)
        )
        bad = not all(map(math.isfinite, norms)) or any(
            value > 0 for name in ("nans", "infs") for value in counts[name]
        )
        assert frame.nonfinite[layer] == bad
