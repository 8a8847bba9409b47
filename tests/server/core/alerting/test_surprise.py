"""Surprises: norms beside the exponential average of the squares before them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradwatch_server.core.alerting.causes import MIN_BEFORE, find_surprise
from gradwatch_server.core.frames.updates import Rise
from gradwatch_server.core.frames.window import Window
from tests.support.core import frame_of, part_of

NAN = float("nan")


def window_of(norms: Any, every: int = 1, **settings: Any) -> Window:
    """Each row a frame."""
    window = Window(**settings)
    for number, norm in enumerate(norms):
        window.add(frame_of(part_of(list(norm)), step=number * every), 0.0)
    return window


def scattered(count: int, spread: float = 0.3) -> Any:
    random = np.random.default_rng(1)
    return np.exp(random.normal(0.0, spread, (count, 2))) * (1.0, 100.0)


@pytest.mark.parametrize("every", [1, 4])
@pytest.mark.parametrize("beta2", [0.9, 0.95])
def test_a_surprise_is_that_of_the_exponential_average(beta2: float, every: int) -> None:
    norms = scattered(200)
    norms[-2, 1] = 2_000.0
    average = weight = 0.0
    for before in norms[:-2, 1]:  # with the bias corrected, as Adam does
        average = beta2**every * average + before**2
        weight = beta2**every * weight + 1.0
    decays = np.array([beta2, beta2])

    found = find_surprise(window_of(norms, every), decays, 200 * every)

    assert found is not None
    assert (found.layer, found.step) == (1, 198 * every)
    # Of the older frames one in eight is known.
    assert found.factor == pytest.approx(2_000.0 / np.sqrt(average / weight), rel=0.1)


def test_an_older_frame_counts_for_those_that_are_not_kept() -> None:
    norms = np.ones((130, 1))
    norms[:114], norms[129] = 10.0, 50.0
    found = find_surprise(window_of(norms), np.array([1.0]), 130)

    assert found is not None
    kept = norms[8:129, 0]  # the oldest one of those that are spaced is that of step 8
    assert found.factor == pytest.approx(50.0 / np.sqrt((kept**2).mean()), rel=0.02)


def test_frames_stand_for_as_many_as_are_not_kept() -> None:
    steps, frames, norms = window_of([[float(step)] for step in range(200)]).rows()

    assert steps.tolist() == [*range(72, 184, 8), *range(184, 200)]
    assert frames.tolist() == [8.0] * 14 + [1.0] * 16
    assert norms[:, 0].tolist() == steps.tolist()


@pytest.mark.parametrize("count", [0, 1, 7, 16, 17, 40])
def test_short_runs_and_small_windows_are_whole(count: int) -> None:
    norms = [[float(step)] for step in range(count)]
    for capacity in (16, 24, 512):
        steps, _, rows = window_of(norms, capacity=capacity).rows()
        assert rows[:, :1].ravel().tolist() == steps.tolist()
        assert steps.tolist()[-16:] == list(range(count))[-16:]
        assert min(steps, default=count) >= max(0, count - capacity)


def test_the_step_itself_and_what_is_long_ago_do_not_count() -> None:
    norms = np.ones((60, 2))
    norms[40, 0], norms[55, 1], norms[58, 1] = 90.0, 5.0, 70.0
    decays = np.array([0.9, 0.9])

    found = find_surprise(window_of(norms), decays, 58)

    assert found == Rise(1, 55, 5.0)
    assert find_surprise(window_of(norms), decays, 9) is None


def test_what_is_not_known_is_passed_over() -> None:
    norms = np.ones((60, 3))
    norms[58] = (50.0, 9.0, 70.0)
    norms[:58, 2] = NAN  # not there until now
    norms[20:30, 1] = np.inf

    assert find_surprise(window_of(norms), np.array([NAN, 0.5, 0.9]), 60) == Rise(1, 58, 9.0)
    assert find_surprise(window_of(norms), np.zeros(0), 60) is None
    assert find_surprise(window_of(norms[: MIN_BEFORE - 1]), np.array([0.9] * 3), 11) is None
