"""Non-finite numbers on their way into JSON."""

from __future__ import annotations

import json
import math
from types import MappingProxyType
from typing import Any

import pytest

from gradwatch_wire.jsonable import jsonable


@pytest.mark.parametrize(
    ("value", "expected"),
    [(math.nan, "NaN"), (-math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity")],
)
def test_a_non_finite_number_becomes_its_name(value: float, expected: str) -> None:
    """JSON has no word for NaN and the infinities, so they are spelt as strings."""
    assert expected == jsonable(value)


@pytest.mark.parametrize("value", [0.0, -0.0, 5e-324, 1.7976931348623157e308, 0, True, None, "NaN"])
def test_what_json_can_say_stays_as_it_is(value: Any) -> None:
    """Finite numbers, booleans, None and strings keep their value and type."""
    result = jsonable(value)

    assert repr(value) == repr(result)


def test_non_finite_numbers_are_found_at_any_depth() -> None:
    """Maps and sequences of any type are walked, and the result is strict JSON."""
    value = MappingProxyType({"a": [1.0, (math.inf, {"b": math.nan})], "c": {}, "d": ()})
    expected = {"a": [1.0, ["Infinity", {"b": "NaN"}]], "c": {}, "d": []}

    assert expected == jsonable(value)
    assert expected == json.loads(json.dumps(jsonable(value), allow_nan=False))


def test_keys_become_strings() -> None:
    """A step or a rank may be a key; JSON knows only strings there."""
    assert jsonable({3: 1, None: 2}) == {"3": 1, "None": 2}


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object(), [1j], {"a": b""}])
def test_what_json_cannot_say_is_an_error(value: Any) -> None:
    """Bytes, sets and objects are refused, and the error names the type."""
    with pytest.raises(TypeError, match=r"not JSON: (bytes|set|object|complex)"):
        jsonable(value)
