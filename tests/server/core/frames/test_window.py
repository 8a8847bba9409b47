"""The window: a circular buffer that reads like the list of the last frames."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwatch_server.core.frames.window import Window
from tests.support.core import frame_of, part_of

FRAMES = st.lists(
    st.tuples(
        st.lists(st.floats(0.0, 1e3) | st.just(math.nan) | st.just(math.inf), max_size=4),
        st.none() | st.floats(),
        st.floats(0.0, 1.0),
    ),
    max_size=150,
)


@pytest.mark.slow
@given(capacity=st.integers(1, 70), rows=FRAMES)
@settings(max_examples=60)
def test_it_reads_like_the_list_of_its_last_frames(capacity: int, rows: list[Any]) -> None:
    window = Window(capacity)
    for step, (l2, loss, score) in enumerate(rows):
        scalars = {} if loss is None else {"loss": loss}
        window.add(frame_of(part_of(l2, scalars=scalars), step=step, world=2), score)
    model = list(enumerate(rows))[-capacity:]
    series = window.series()

    assert len(window) == len(model)
    assert series.steps.tolist() == [step for step, _ in model]
    assert series.score.tolist() == [score for _, (_, _, score) in model]
    assert series.coverage.tolist() == [0.5] * len(model)
    losses = [math.nan if loss is None else loss for _, (_, loss, _) in model]
    np.testing.assert_array_equal(series.loss, losses)
    for layer in range(5):
        for most in (1, 5, 200):
            tail = model[-min(most, 16) :]
            assert window.before(layer, most) == tuple(
                (step, l2[layer])
                for step, (l2, _, _) in tail
                if layer < len(l2) and not math.isnan(l2[layer])
            )


def test_the_largest_step_stays_exact() -> None:
    """Steps up to 2^53 - 1 come back as they were."""
    window = Window(8)
    for step in ((1 << 53) - 2, (1 << 53) - 1):
        window.add(frame_of(part_of([1.0]), step=step), 1.0)

    assert window.series().steps.tolist() == [(1 << 53) - 2, (1 << 53) - 1]
    assert window.before(0, 5) == (((1 << 53) - 2, 1.0), ((1 << 53) - 1, 1.0))


def test_a_series_stays_what_it_was() -> None:
    window = Window(2)
    window.add(frame_of(part_of([3.0]), step=1), 0.25)
    series = window.series()
    for step in (2, 3):
        window.add(frame_of(part_of([9.0]), step=step), 1.0)

    assert series.steps.tolist() == [1]
    assert series.total_norm.tolist() == [3.0]
    with pytest.raises(ValueError, match="read-only"):
        series.score[0] = 1.0


@pytest.mark.parametrize(("frames", "steps"), [(5, 40), (47, 40), (47, 8), (20, 12)])
def test_a_window_of_another_size_keeps_the_newest_frames(frames: int, steps: int) -> None:
    window = Window(20)
    for step in range(frames):
        window.add(frame_of(part_of([step + 1.0]), step=step), 1.0)
    window.resize(steps)

    kept = list(range(frames))[-min(steps, 20) :]
    assert window.series().steps.tolist() == kept
    window.add(frame_of(part_of([9.0]), step=99), 1.0)
    assert window.series().steps.tolist() == [*kept, 99][-steps:]
    assert window.before(0, 2) == ((frames - 1, float(frames)), (99, 9.0))


def test_the_usual_norm_is_a_median_over_128_frames() -> None:
    """A layer that grows for 30 frames is not usual by then."""
    window = Window()
    for step in range(130):
        grown = 100.0 if step >= 100 else 1.0
        window.add(frame_of(part_of([grown, 2.0] if step else [1.0]), step=step), 1.0)

    assert window.usual(np.array([1, 0, 7])).tolist()[:2] == [2.0, 1.0]
    assert math.isnan(window.usual(np.array([7]))[0])


@pytest.mark.parametrize(
    ("steps", "step", "before"),
    [
        ((), 5, None),
        ((0, 10, 20), 30, 20),
        ((0, 10, 20), 20, 10),
        ((0, 10, 20), 0, None),
        ((0, 10, 90, 20, 30), 40, 30),  # of before a jump back nothing counts
        ((0, 10, 90, 20, 30), 20, None),
        ((0, 10, 20, 30, 40, 50), 20, None),  # it has left the window
    ],
)
def test_the_step_before_another_is_that_of_a_frame(
    steps: tuple[int, ...], step: int, before: int | None
) -> None:
    window = Window(5 if len(steps) < 6 else 3)
    for own in steps:
        window.add(frame_of(part_of([1.0]), step=own), 1.0)
    assert window.step_before(step) == before
