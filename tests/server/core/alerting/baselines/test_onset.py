"""Where a slow change began, found on ramps of known beginning; and the slow ring."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradwatch_server.core.alerting.baselines.onset import find_onset
from gradwatch_server.core.alerting.baselines.slow_ring import BLOCK, BLOCKS, SlowRing


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("growth", "most"), [(1.01, 60), (1.02, 50), (1.05, 40), (1.3, 12)])
def test_the_onset_of_a_ramp_is_found(growth: float, most: int, sign: int) -> None:
    random = np.random.default_rng(7)
    frames = math.ceil(math.log(12.0) / math.log(growth))
    errors = []
    for _ in range(40):
        begin = 512 - frames
        series = random.normal(0.0, 0.2, 512)
        series[begin:] += sign * math.log(growth) * np.arange(1, frames + 1)
        errors.append(find_onset(series, sign).index - begin)

    assert np.percentile(np.abs(errors), 80) <= most
    assert abs(np.median(errors)) <= most / 3


@pytest.mark.parametrize("frames", [1, 6, 40])
def test_the_onset_of_a_step_is_its_first_frame(frames: int) -> None:
    series = np.random.default_rng(8).normal(0.0, 0.2, 300)
    series[-frames:] -= 4.0

    assert abs(find_onset(series, -1).index - (300 - frames)) <= 1


def test_a_short_history_is_enough() -> None:
    assert find_onset(np.array([0.0, 3.0]), 1).index == 1


def test_blocks_have_their_median_and_largest() -> None:
    ring = SlowRing()
    done = [
        ring.add(np.array([float(frame), math.nan if frame % 16 < 12 else 1.0]))
        for frame in range(BLOCK * (BLOCKS + 1))
    ]

    assert sum(done) == BLOCKS + 1
    assert done[BLOCK - 1]
    assert len(ring) == BLOCKS
    assert ring.medians()[:, 0].tolist() == [BLOCK * b + 7.5 for b in range(1, BLOCKS + 1)]
    assert ring.maxima()[:, 0].tolist() == [BLOCK * b + 15.0 for b in range(1, BLOCKS + 1)]
    assert np.isnan(ring.medians()[:, 1]).all()


def test_a_ring_takes_new_series_and_comes_back_from_a_file() -> None:
    ring = SlowRing()
    for frame in range(40):
        ring.add(np.array([float(frame)]) if frame < 20 else np.array([float(frame), 1.0]))
    again = SlowRing()
    again.load_state_dict(ring.state_dict())
    for frame in range(40, 48):
        assert ring.add(np.array([0.1, 2.0])) == again.add(np.array([0.1, 2.0])), frame

    assert np.array_equal(ring.medians(), again.medians(), equal_nan=True)
    assert ring.medians().shape == (3, 2)
