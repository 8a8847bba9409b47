"""Dead modules: a run of zeros, against how often a module was zero before."""

from __future__ import annotations

import numpy as np
import pytest

from gradwatch_server.core.judge.zeros import Zeros


def told(norms: list[float]) -> tuple[list[int], list[int]]:
    """Return the frames in which one module, beside one that lives, is dead, and is paged."""
    zeros, dead, paged = Zeros(), [], []
    for frame, norm in enumerate(norms):
        zeros.add(np.array([norm, 1.0]))
        if zeros.dead()[0]:
            dead.append(frame)
        if zeros.paged()[0]:
            paged.append(frame)
    return dead, paged


@pytest.mark.parametrize(
    ("norms", "dead", "paged"),
    [
        ([1.0] * 40 + [0.0] * 4, [42, 43], [42, 43]),
        ([1.0] * 40 + [0.0] * 2 + [1.0] * 3, [], []),
        # Too young to be sure of three, and rarer than one in a million at five.
        ([1.0] * 20 + [0.0] * 6, [24, 25], []),
        # Never alive.
        ([0.0] * 60, [], []),
        # Every second frame is a zero: 20 in a row are rare by that.
        ([1.0, 0.0] * 30 + [1.0] + [0.0] * 22, [80, 81, 82], []),
        # One zero in 200 frames does not excuse the module.
        ([1.0] * 100 + [0.0] + [1.0] * 100 + [0.0] * 3, [203], [203]),
        # Absent frames are no zeros.
        ([1.0] * 40 + [float("nan")] * 9, [], []),
    ],
)
def test_a_run_of_zeros_is_judged_by_the_zeros_before(
    norms: list[float], dead: list[int], paged: list[int]
) -> None:
    assert told(norms) == (dead, paged)


def test_where_nothing_is_alive_any_death_is_paged() -> None:
    zeros = Zeros()
    for norm in [1.0] * 20 + [0.0] * 5:
        zeros.add(np.array([norm, norm]))

    assert zeros.paged().tolist() == [True, True]
    assert not zeros.is_dying


def test_a_module_is_dying_for_three_frames() -> None:
    zeros = Zeros()
    for norm in [1.0] * 40 + [0.0] * 5:
        zeros.add(np.array([norm, 1.0]))
        assert zeros.is_dying == (0 < zeros.run[0] <= 3)


@pytest.mark.parametrize(("is_other_woken", "is_paged"), [(True, False), (False, True)])
def test_an_expert_that_hands_over_to_another_is_no_dead_one(
    *, is_other_woken: bool, is_paged: bool
) -> None:
    zeros = Zeros()
    for _ in range(60):
        zeros.add(np.array([1.0, 1.0, 0.0]))
    for _ in range(10):
        zeros.add(np.array([1.0, 0.0, float(is_other_woken)]))

    assert zeros.paged().tolist() == [False, is_paged, False]
