"""Arrays as plain data: each bit of them comes back, and they take little."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwatch_server.core.packing import pack, unpack

NAN = math.nan


def through_bytes(plain: Any) -> Any:
    """Return what a file would give back."""
    return msgpack.unpackb(msgpack.packb(plain), strict_map_key=False)


FLOATS = st.floats() | st.floats(width=32) | st.integers(0, 1 << 33).map(float)


@pytest.mark.slow
@given(rows=st.lists(st.lists(FLOATS, min_size=3, max_size=3), max_size=4), same=st.booleans())
def test_each_bit_of_an_array_comes_back(rows: list[Any], same: bool) -> None:
    """NaN with its sign, -0.0 and subnormals, however narrow it was written."""
    array = np.array(rows, dtype=np.float64).reshape(-1, 3)
    if same and array.size:
        array[:] = array[0, 0]
    again = unpack(through_bytes(pack(array))).astype(np.float64)

    assert again.shape == array.shape
    assert again.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    ("values", "code", "size"),
    [
        ([0.0] * 100, "=", 8),
        ([NAN] * 100, "=", 8),
        ([7.0, 2.0**32 - 1], "<u4", 8),
        ([0.5, math.inf], "<f4", 8),
        ([0.1, 1.0], "<f8", 16),
        ([-0.0, 1.0], "<f4", 8),
    ],
)
def test_an_array_takes_no_more_than_it_needs(values: list[float], code: str, size: int) -> None:
    packed = pack(np.array(values))
    assert (packed[0], len(packed[2])) == (code, size)


def test_an_array_of_another_code_is_refused() -> None:
    with pytest.raises(ValueError, match="array code 'O' is none of"):
        unpack(["O", [1], b"x" * 8])
