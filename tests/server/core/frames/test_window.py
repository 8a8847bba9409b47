"""The window: a circular buffer that reads like the list of the last frames."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwatch_server.core.frames.window import Window

FRAMES = st.lists(
    st.tuples(
        st.lists(st.floats(0.0, 1e3) | st.just(math.nan) | st.just(math.inf), max_size=4),
        st.none() | st.floats(),
        st.floats(0.0, 1.0),
    ),
    max_size=150,
)


@given(capacity=st.integers(1, 70), rows=FRAMES)
@settings(max_examples=60, deadline=None)
def test_it_reads_like_the_list_of_its_last_frames(
    make_part: Any, make_frame: Any, capacity: int, rows: list[Any]
) -> None:
    """Whatever was written over, and however many layers came later, nothing else is read."""
    window = Window(capacity)
    for step, (l2, loss, score) in enumerate(rows):
        scalars = {} if loss is None else {"loss": loss}
        window.add(make_frame(make_part(l2, scalars=scalars), step=step, world=2), score)
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
            tail = model[-most:]
            assert window.before(layer, most) == tuple(
                (step, l2[layer])
                for step, (l2, _, _) in tail
                if layer < len(l2) and not math.isnan(l2[layer])
            )


def test_the_largest_step_stays_exact(make_part: Any, make_frame: Any) -> None:
    """Steps up to 2^53 - 1 come back as they were."""
    window = Window(8)
    for step in ((1 << 53) - 2, (1 << 53) - 1):
        window.add(make_frame(make_part([1.0]), step=step), 1.0)

    assert window.series().steps.tolist() == [(1 << 53) - 2, (1 << 53) - 1]
    assert window.before(0, 5) == (((1 << 53) - 2, 1.0), ((1 << 53) - 1, 1.0))


def test_a_series_stays_what_it_was(make_part: Any, make_frame: Any) -> None:
    """It is a copy, which the next frame does not touch and no reader can write."""
    window = Window(2)
    window.add(make_frame(make_part([3.0]), step=1), 0.25)
    series = window.series()
    for step in (2, 3):
        window.add(make_frame(make_part([9.0]), step=step), 1.0)

    assert series.steps.tolist() == [1]
    assert series.total_norm.tolist() == [3.0]
    with pytest.raises(ValueError, match="read-only"):
        series.score[0] = 1.0


def test_memory_is_taken_as_frames_come(make_part: Any, make_frame: Any) -> None:
    """A short run does not pay for the whole window, nor for columns that nobody measures."""
    window = Window(512)
    sizes = set()
    for step in range(1200):
        window.add(make_frame(make_part([1.0]), step=step), 1.0)
        sizes.add(window._values.shape)

    assert sizes == {(rows, 1, 1) for rows in (32, 64, 128, 256, 512)}
