"""Codes of cells: nothing is taken for something else, and the worst is never hidden."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwatch_server.curves import codes
from gradwatch_server.curves.buckets import Buckets
from gradwatch_server.curves.rows import Rows


@given(st.floats(2.0**-149, 2.0**129))
def test_a_magnitude_comes_back_within_a_sixth_of_a_percent(value: float) -> None:
    code = codes.encode(np.array([value]))

    assert code[0] >= codes.FIRST
    assert codes.decode(code)[0] == pytest.approx(value, rel=0.0016)


def test_what_is_no_magnitude_has_a_code_of_its_own() -> None:
    values = np.array([0.0, 2.0**-150, 2.0**-149, 1.0, 2.0**129, 2.0**130, math.nan])

    assert codes.encode(values).tolist() == [
        *(codes.ZERO, codes.BELOW, codes.FIRST),
        *(codes.FIRST + round(149 * codes.STEPS), 65_535, codes.ABOVE, codes.ABSENT),
    ]


def cells_of(*values: float | None, width: int = 4) -> list[int]:
    """Return the code of one bucket of these values, where 1.0 is usual."""
    steps = np.arange(len(values), dtype=np.int64)
    known = np.array([[value is not None] for value in values])
    numbers = np.array([[math.nan if value is None else value] for value in values])
    rows = Rows(steps, steps, np.zeros(len(values), np.bool_), numbers, known)
    buckets = Buckets.of(rows, width)
    num = len(buckets.numbers)
    usual = codes.usual(np.ones((num, 1)))
    found: list[int] = codes.cells(buckets, np.ones(num, np.bool_), usual)[0].tolist()
    return found


def test_the_most_urgent_of_a_cell_is_shown() -> None:
    """NaN and Inf, then what is farthest from usual, up or down, then zero."""
    small, large = codes.encode(np.array([1e-3, 50.0])).tolist()
    one = codes.encode(np.array([1.0]))[0]

    assert cells_of(1.0, math.nan, math.inf, 9.0) == [codes.NAN_AND_INF]
    assert cells_of(1.0, math.nan, 0.0, 9.0) == [codes.NAN]
    assert cells_of(1.0, 1e-3, 50.0, 9.0) == [small]
    assert cells_of(1.0, 0.1, 50.0, 9.0) == [large]
    assert cells_of(0.0, 1.0, None, 1.0) == [one]
    assert cells_of(0.0, 0.0) == [codes.ZERO]
    assert cells_of(None, None) == [codes.ABSENT]


def test_what_is_usual_is_the_median_of_what_is_there() -> None:
    values = np.array([[1.0, 2.0, math.nan], [8.0, math.nan, math.nan], [4.0, 6.0, math.nan]])
    steps = np.arange(3, dtype=np.int64)
    rows = Rows(steps, steps, np.zeros(3, np.bool_), values, ~np.isnan(values))

    found = codes.usual(codes.medians(Buckets.of(rows, 1))[None])

    assert found[:2, 0].tolist() == codes.encode(np.array([4.0, 4.0])).tolist()
    assert found[2, 0] == codes.NO_RECORD
