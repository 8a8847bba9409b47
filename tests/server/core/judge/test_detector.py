"""The detector: what is flagged against the record of a series, and at which scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from gradwatch_server.core.arrays import FloatArray
from gradwatch_server.core.judge.away import NEAR_FRAMES, Away
from gradwatch_server.core.judge.detector import (
    APART,
    LOSS,
    NORM,
    Detector,
    SeriesKind,
    SeriesState,
)
from gradwatch_server.core.state_codec import decode, encode

HEALTHY = 320


def noise(frames: int, series: int, deviation: float = 0.1, seed: int = 0) -> FloatArray:
    """Return (frames, series) logarithms around 0."""
    return np.random.default_rng(seed).normal(0.0, deviation, (frames, series))


def detector_of(kinds: Sequence[SeriesKind], state: SeriesState | None = None) -> Detector:
    return Detector(state or SeriesState(), list(kinds), np.ones(len(kinds)), 5.0)


def flagged(detector: Detector, values: FloatArray) -> list[tuple[int, int, int]]:
    """Return (frame, scale, series) of all rises that are flagged."""
    found = []
    for frame, row in enumerate(values):
        with np.errstate(all="ignore"):
            detector.update(row)
        found += [(frame, int(at[0]), int(at[1])) for at in np.argwhere(detector.up >= 1.0)]
    return found


def test_deviations_that_are_over_widen_the_margins() -> None:
    away, patience = Away(), []
    away.grow(1)
    for _ in range(5):
        away.begin(np.array([0]), np.zeros(1), np.ones(1), 1.0)
        for _ in range(NEAR_FRAMES):
            away.update(np.zeros(1), 256)
        patience.append(away.patience)
    once, twice = detector_of([NORM]), detector_of([NORM])
    for row in noise(HEALTHY, 1):
        once.update(row)
        twice.update(row, 2.0)

    assert patience == [1.5, 2.0, 2.5, 3.0, 3.0]
    assert (once.up == 2.0 * twice.up).all()


def test_noise_is_never_flagged() -> None:
    values = noise(2_000, 6)

    assert flagged(detector_of([NORM, LOSS, NORM, APART, NORM, APART]), values) == []


def test_a_jump_of_one_series_is_flagged_in_its_frame_and_no_other_series() -> None:
    values = noise(HEALTHY + 1, 4)
    values[HEALTHY, 2] += 3.0

    assert flagged(detector_of([APART] * 4), values) == [(HEALTHY, 0, 2)]


def test_a_fall_is_flagged_by_the_mean_of_16_frames() -> None:
    values = noise(HEALTHY + 16, 4)
    values[HEALTHY:, 2] -= 3.0
    detector = detector_of([APART] * 4)

    assert not flagged(detector, values)
    assert (detector.down >= 1.0).any(axis=0).tolist() == [False, False, True, False]


def test_slow_growth_is_flagged_at_a_longer_scale_before_it_is_large() -> None:
    """Three percent a frame: no single frame is far from the one before."""
    values = noise(HEALTHY + 200, 1, 0.05)
    values[HEALTHY:, 0] += 0.03 * np.arange(200)
    frame, scale, _ = flagged(detector_of([APART]), values)[0]

    assert scale >= 1
    assert values[frame, 0] < 3.0


def test_a_rise_that_the_series_has_shown_before_is_no_news() -> None:
    """The record is that of the series itself: it jumps by as much every 40 frames."""
    values = noise(HEALTHY + 40, 1)
    values[::40] += 3.0
    found = flagged(detector_of([NORM]), values)

    assert {frame for frame, *_ in found if frame > 48} == set()


def test_growth_does_not_excuse_itself() -> None:
    """A frame is part of the record two blocks later, so that a ramp goes on to be flagged."""
    values = noise(HEALTHY + 60, 1, 0.05)
    values[HEALTHY:, 0] += 0.08 * np.arange(60)
    frames = {frame for frame, *_ in flagged(detector_of([APART]), values)}

    assert len(frames) >= 20


def test_a_young_series_takes_more_than_one_with_a_record() -> None:
    def least(healthy: int) -> float:
        for height in np.arange(0.5, 8.0, 0.25):
            values = noise(healthy + 1, 1)
            values[healthy] += height
            if any(frame == healthy for frame, *_ in flagged(detector_of([NORM]), values)):
                return float(height)
        return 99.0

    assert least(6) > 1.5 * least(HEALTHY)
    assert least(3) == 99.0  # nothing is judged by three samples


def test_an_absent_series_neither_moves_nor_is_flagged() -> None:
    values = noise(HEALTHY + 30, 2)
    values[HEALTHY:, 1] = np.nan
    detector = detector_of([NORM, NORM])
    found = flagged(detector, values[: HEALTHY + 29])
    level = detector.state.level.copy()
    found += flagged(detector, values[HEALTHY + 29 :])

    assert found == []
    assert detector.state.level[1] == level[1]
    assert detector.state.level[0] != level[0]
    assert detector.state.num_samples.tolist() == [HEALTHY + 30, HEALTHY]


@pytest.mark.parametrize("at", [1, 17, 63, 64, 200, HEALTHY + 3])
def test_a_restart_at_any_frame_changes_nothing(at: int) -> None:
    values = noise(HEALTHY + 40, 3)
    values[HEALTHY:, 1] += 0.1 * np.arange(40)
    kinds = [NORM, LOSS, APART]
    live, before = detector_of(kinds), detector_of(kinds)
    flagged(before, values[:at])
    after = detector_of(kinds, decode(encode(before.state), SeriesState))
    flagged(live, values[:at])

    assert flagged(live, values[at:]) == flagged(after, values[at:])
    assert np.array_equal(live.up, after.up)
    assert encode(live.state) == encode(after.state)
