"""Steps between two records: read as they came, merged over the ranks, wrong ones left out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from gradwatch_server.core.frames.step_numbers import StepNumbers, merge_steps
from gradwatch_wire import Column


def history(steps: Sequence[int], **columns: Sequence[float]) -> StepNumbers:
    packed = {name: Column.pack("<f8", values) for name, values in columns.items()}
    found = StepNumbers.read({"step": Column.pack("<u8", steps)} | packed, 100)
    assert found is not None
    return found


def test_it_has_what_the_record_has() -> None:
    own = history([3, 4], loss=[1.0, math.nan], has_loss=[1, 0], lr=[0.1, 0.2], skipped=[0, 1])
    assert own.steps.tolist() == [3, 4]
    assert own.loss[0] == 1.0
    assert own.has_loss.tolist() == [True, False]
    assert own.lr.tolist() == [0.1, 0.2]
    assert own.skipped.tolist() == [False, True]
    assert np.isnan(own.step_time_s).all()
    assert own.bad_step is None


def test_without_steps_there_is_none() -> None:
    assert StepNumbers.read({"loss": Column.pack("<f8", [1.0])}, 10) is None


@pytest.mark.parametrize("code", ["<f8", "<f4"])
def test_steps_that_cannot_be_are_left_out(code: str) -> None:
    steps = [math.nan, -1.0, math.inf, 5.0, 5.0, 4.0, 100.0, 1e30]
    columns = {"step": Column.pack(code, steps), "loss": Column.pack("<f8", range(8))}
    own = StepNumbers.read(columns, 100)
    assert own is not None
    assert own.steps.tolist() == [4, 5]
    assert own.loss.tolist() == [5.0, 3.0]


def test_without_a_mark_each_step_has_a_loss_and_a_bad_one_is_found() -> None:
    own = history([7, 8, 9], loss=[1.0, math.inf, math.nan])
    assert own.has_loss.all()
    assert own.bad_step == 8
    assert not history([7], lr=[1.0]).has_loss.any()


def test_ranks_are_put_together_step_by_step() -> None:
    merged = merge_steps(
        [
            history([1, 2, 3], loss=[1.0, 2.0, 3.0], lr=[0.1, 0.1, 0.1], skipped=[0, 0, 1]),
            history([2, 3, 4], loss=[4.0, math.nan, 6.0], step_time_s=[1.0, 2.0, 3.0]),
            history([2], loss=[math.nan], has_loss=[0], step_time_s=[9.0]),
        ]
    )
    assert merged is not None
    assert merged.steps.tolist() == [1, 2, 3, 4]
    assert merged.loss[[0, 1, 3]].tolist() == [1.0, 3.0, 6.0]
    assert math.isnan(merged.loss[2])
    assert merged.has_loss.all()
    assert merged.lr[:3].tolist() == [0.1, 0.1, 0.1]
    assert math.isnan(merged.lr[3])
    assert merged.step_time_s[1:].tolist() == [9.0, 2.0, 3.0]
    assert merged.skipped.tolist() == [False, False, True, False]


def test_of_nothing_there_is_nothing_to_merge() -> None:
    assert merge_steps([]) is None
