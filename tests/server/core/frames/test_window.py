"""The window: a circular buffer that reads like the list of the last frames."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.frames.window import Chunk, Window
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
            tail = model[-most:]
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


@pytest.mark.slow
def test_memory_is_taken_as_frames_come() -> None:
    """A short run does not pay for the whole window, nor for columns that nobody measures."""
    window = Window(512)
    sizes = set()
    for step in range(1200):
        window.add(frame_of(part_of([1.0]), step=step), 1.0)
        sizes.add(window.num_bytes)

    assert sizes == {rows * 8 for rows in range(8, 513, 8)}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 30)),
        st.tuples(st.just("save"), st.just(0)),
        st.tuples(st.just("release"), st.integers(0, 9)),
        st.tuples(st.just("fill"), st.integers(1, 3)),
        st.tuples(st.just("restart"), st.just(0)),
    ),
    min_size=3,
    max_size=30,
)


class Saved:
    """What a store does for a window: it keeps chunks, and gives them back."""

    def __init__(self) -> None:
        self.chunks: dict[int, Chunk] = {}
        self.num_frames = 0
        self.state: Any = None

    def save(self, window: Window) -> None:
        changed = window.changed(self.num_frames)
        for number in set(window.absent()).intersection(changed):
            window.fill(number, self.columns(number))
        for number in changed:
            own = window.chunk(number)
            columns = [values.copy() for values in own.columns]
            self.chunks[number] = Chunk(number, own.steps.copy(), columns)
        self.num_frames, self.state = window.num_added, window.state_dict()

    def columns(self, number: int) -> Any:
        return self.chunks[number].columns

    def restored(self) -> Window:
        steps = [(number, own.steps) for number, own in self.chunks.items()]
        window = Window.from_state_dict(self.state, steps)
        window.keep_with(self.columns)
        return window


class Story:
    """Two windows with the same frames, of which one has to do without what is saved."""

    def __init__(self, capacity: int, frame: Callable[[int], Frame]) -> None:
        self.window, self.model = Window(capacity), Window(capacity)
        self.saved, self.model_saved = Saved(), Saved()
        self.frame = frame

    def add(self, count: int) -> None:
        for _ in range(count):
            frame = self.frame(self.model.num_added)
            self.window.add(frame, 1.0)
            self.model.add(frame, 1.0)

    def save(self, _: int = 0) -> None:
        self.saved.save(self.window)
        self.model_saved.save(self.model)

    def release(self, most: int) -> None:
        self.window.keep_with(self.saved.columns)
        found = self.window.releasable(self.saved.num_frames, newest=most % 2 == 0)
        self.window.release(found[: most or None])

    def fill(self, most: int) -> None:
        for number in self.window.absent()[:most]:
            self.window.fill(number, self.saved.columns(number))

    def restart(self, _: int) -> None:
        self.save()
        self.window = self.saved.restored()


@pytest.mark.slow
@given(capacity=st.sampled_from([3, 8, 20, 40]), deeds=STEPS, most=st.sampled_from([1, 5, 99]))
@settings(max_examples=80)
def test_what_leaves_memory_changes_nothing(
    capacity: int, deeds: list[tuple[str, int]], most: int
) -> None:
    def frame(step: int) -> Frame:
        made: Frame = frame_of(part_of([float(step), 1.0][: 1 + step // 20]), step=step)
        return made

    story = Story(capacity, frame)
    for deed, value in deeds:
        getattr(story, deed)(value)
        one, model = story.window, story.model
        layers = np.arange(3)
        np.testing.assert_array_equal(one.recent(layers, most), model.recent(layers, most))
        assert one.before(1, most) == model.before(1, most)
        assert one.state_dict() == model.state_dict()
    story.save()
    for number, chunk in story.model_saved.chunks.items():
        np.testing.assert_array_equal(story.saved.chunks[number].columns, chunk.columns)


def test_what_left_memory_takes_none() -> None:
    window, saved = Window(64), Saved()
    for step in range(64):
        window.add(frame_of(part_of([float(step)]), step=step), 1.0)
    assert window.releasable(saved.num_frames, newest=True) == []
    saved.save(window)
    window.keep_with(saved.columns)
    window.release(window.releasable(saved.num_frames, newest=True))

    assert window.num_bytes == 0
    assert len(window.before(0, 64)) == 64
    assert window.num_bytes == 2 * window.bytes_of(0)
    assert window.absent() == [5, 4, 3, 2, 1, 0]


def test_what_cannot_be_read_is_tried_again() -> None:
    """A read that fails costs what one alert tells, and no frame."""
    window, saved = Window(8), Saved()
    window.add(frame_of(part_of([3.0]), step=1), 1.0)
    saved.save(window)
    window.keep_with(lambda _number: None)
    window.release(window.releasable(saved.num_frames, newest=True))

    assert window.before(0, 5) == ()
    window.keep_with(saved.columns)
    assert window.before(0, 5) == ((1, 3.0),)
