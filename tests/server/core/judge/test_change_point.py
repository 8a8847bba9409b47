"""Change points: the first sample of a step or of a ramp, among noise."""

from __future__ import annotations

import numpy as np
import pytest

from gradwatch_server.core.judge.change_point import change_point


@pytest.mark.parametrize("after", [1, 2, 5, 12])
@pytest.mark.parametrize("height", [1.0, -1.0])
def test_a_step_is_found_to_the_frame(after: int, height: float) -> None:
    samples = np.random.default_rng(1).normal(0.0, 0.1, 40)
    samples[40 - after :] += height

    assert change_point(samples, 0.0, 0.1, min(after, 4)) == 40 - after


def test_a_ramp_is_found_within_a_few_frames() -> None:
    samples = np.random.default_rng(1).normal(0.0, 0.1, 63)
    samples[33:] += 0.1 * np.arange(30)

    assert abs(change_point(samples, 0.0, 0.1, 16) - 33) <= 4


def test_an_absent_sample_is_like_the_level() -> None:
    samples = np.array([0.0, 0.0, np.nan, 5.0, np.nan, 5.0])

    assert change_point(samples, 0.0, 0.1, 1) == 3
