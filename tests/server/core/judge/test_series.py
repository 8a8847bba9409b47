"""Series of a frame: floors, the common factor, and what is no sample."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradwatch_server.core.judge.series import (
    FIRST_MODULE,
    LOSS_SERIES,
    TOTAL,
    FrameNumbers,
    SeriesMaker,
    change_point,
)

NORMS = np.array([1.0, 2.0, 4.0, 8.0, 16.0])


def frame(norms: object, loss: float = 2.0, **changes: object) -> FrameNumbers:
    own = np.asarray(norms, dtype=np.float64)
    return FrameNumbers(0, own, float(np.sqrt(np.nansum(own * own))), loss, **changes)  # type: ignore[arg-type]  # of one test each


def trained(frames: int = 40) -> SeriesMaker:
    maker = SeriesMaker()
    for _ in range(frames):
        maker.values(frame(NORMS))
    return maker


def test_what_moves_all_modules_moves_no_module_apart() -> None:
    maker = trained()
    before = maker.values(frame(NORMS))
    after = maker.values(frame(3.0 * NORMS))

    moved = after - before
    assert np.allclose(moved[FIRST_MODULE::2], math.log(3.0), atol=0.01)
    assert np.allclose(moved[FIRST_MODULE + 1 :: 2], 0.0, atol=0.01)
    assert moved[TOTAL] > 1.0


def test_what_moves_one_module_moves_it_alone() -> None:
    maker = trained()
    before = maker.values(frame(NORMS))
    moved = maker.values(frame([1.0, 2.0, 40.0, 8.0, 16.0])) - before

    assert moved[FIRST_MODULE + 5] > 2.0
    assert np.allclose(np.delete(moved[FIRST_MODULE + 1 :: 2], 2), 0.0, atol=0.01)


def test_of_two_modules_each_is_compared_with_the_other() -> None:
    maker = SeriesMaker()
    for _ in range(20):
        maker.values(frame([1.0, 1.0]))
    moved = maker.values(frame([10.0, 1.0])) - maker.values(frame([1.0, 1.0]))

    assert moved[FIRST_MODULE + 1] > 2.0
    assert moved[FIRST_MODULE + 3] < -2.0


def test_a_floor_keeps_a_solved_task_quiet() -> None:
    maker = trained()
    tiny = [maker.values(frame(NORMS, loss=own))[LOSS_SERIES] for own in (1e-6, 1e-4)]

    assert abs(tiny[1] - tiny[0]) < 0.01


def test_zero_absent_and_unsound_are_no_samples() -> None:
    maker = trained()
    values = maker.values(frame([1.0, 0.0, np.nan, 8.0, 16.0]))
    assert np.isnan(values[FIRST_MODULE::2]).tolist() == [False, True, True, False, False]
    assert np.isnan(maker.values(frame(NORMS, is_sound=False))).all()


def test_from_the_first_negative_loss_on_the_loss_stands_for_itself() -> None:
    maker = trained()
    assert maker.values(frame(NORMS, loss=-3.0))[LOSS_SERIES] == -3.0
    assert maker.values(frame(NORMS, loss=7.0))[LOSS_SERIES] == 7.0


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
