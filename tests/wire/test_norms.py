"""One total norm for both sides: numpy's and torch's arrays give the same number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradwatch_wire.norms import LARGEST, total_norm


def by_numpy(norms: list[float]) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(total_norm(np.array(norms, dtype=np.float64), np))


def by_torch(norms: list[float]) -> float:
    return float(total_norm(torch.tensor(norms, dtype=torch.float64), torch))


BOTH = pytest.mark.parametrize("total", [by_numpy, by_torch])


@BOTH
@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ([0.0, 0.0], 0.0),
        ([3.0, 4.0], 5.0),
        ([3e200, 4e200], 5e200),
        ([3e-200, 4e-200], 5e-200),
        ([5e-324], 5e-324),
        ([1e160, 1.0], 1e160),
        ([1.7e308] * 4, LARGEST),
        ([LARGEST], LARGEST),
    ],
)
def test_the_total_of_finite_norms_is_finite(
    total: Any, norms: list[float], expected: float
) -> None:
    """Squares neither overflow nor vanish, and a sum beyond the range is the largest float."""
    assert total(norms) == pytest.approx(expected, rel=1e-12)
    assert math.isfinite(total(norms))


@BOTH
@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ([math.inf], math.inf),
        ([1.0, math.inf, LARGEST], math.inf),
        ([math.nan, 1.0], math.nan),
        ([math.inf, math.nan], math.nan),
    ],
)
def test_nan_and_inf_stay(total: Any, norms: list[float], expected: float) -> None:
    assert str(total(norms)) == str(expected)


@pytest.mark.slow
@given(st.lists(st.floats(min_value=0.0), min_size=1, max_size=20))
@settings(max_examples=200)
def test_both_sides_give_the_same_number(norms: list[float]) -> None:
    assert by_numpy(norms) == pytest.approx(by_torch(norms), rel=1e-14, nan_ok=True)
