"""The largest and the smallest of some numbers, whatever is among them."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradwatch_server.core.arrays import largest_of, smallest_of


@given(values=st.lists(st.floats(), max_size=8))
def test_numbers_that_are_none_do_not_count(values: list[float]) -> None:
    """A NaN is passed over, wherever it stands; of nothing, nothing is above or below."""
    known = [value for value in values if not math.isnan(value)]
    assert largest_of(np.array(values)) == max(known, default=-math.inf)
    assert smallest_of(np.array(values)) == min(known, default=math.inf)
