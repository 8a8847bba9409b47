"""The arithmetic of gains."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwatch_wire.gains import CATEGORIES, gain_category, gains, log_gains, summarize_gains

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("early", "late", "gain"),
    [
        (3.0, 1.5, 2.0),
        (0.0, 1.0, 0.0),
        (1.0, 0.0, INF),
        (1.0, 1e-31, INF),
        (None, 1.0, None),
        (1.0, None, None),
        (NAN, 1.0, None),
        (1.0, NAN, None),
        (INF, 1.0, None),
        (1.0, INF, None),
        (INF, INF, None),
    ],
)
def test_a_gain_is_the_earlier_norm_over_the_later(
    early: float | None, late: float | None, gain: float | None
) -> None:
    assert gains([early, late]) == [gain]


@pytest.mark.slow
@given(st.lists(st.none() | st.floats(min_value=0.0), max_size=8))
def test_the_categories_add_up_to_the_transitions(norms: list[float | None]) -> None:
    values = gains(norms)
    summary = summarize_gains(values)

    assert len(values) == max(0, len(norms) - 1)
    assert sum(summary[f"num_{name}"] or 0 for name in CATEGORIES) == len(values)


def test_the_summary_of_known_gains() -> None:
    summary = summarize_gains([4.0, 1.0, 0.25, INF, None])

    assert summary == {
        "mean_gain": 1.75,
        "min_gain": 0.25,
        "max_gain": 4.0,
        "mean_log_gain": pytest.approx(0.0),
        "num_amplifying": 1,
        "num_damping": 1,
        "num_healthy": 1,
        "num_vanishing": 1,
        "num_missing": 1,
    }


def test_logarithms_keep_what_is_missing_and_what_vanished() -> None:
    assert log_gains([1.0, 0.0, None, INF]) == [0.0, -INF, None, INF]


@pytest.mark.parametrize(
    ("gain", "category"),
    [
        (2.0, "healthy"),
        (2.1, "amplifying"),
        (0.5, "healthy"),
        (0.4, "damping"),
        (0.0, "damping"),
        (INF, "vanishing"),
        (None, "missing"),
    ],
)
def test_a_gain_is_of_one_category(gain: float | None, category: str) -> None:
    assert gain_category(gain) == category
