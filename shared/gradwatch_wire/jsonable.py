"""Non-finite numbers in JSON: the strings `"NaN"`, `"Infinity"`, `"-Infinity"`, everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gradwatch_wire.records import Json


def jsonable(value: Any) -> Json:
    """Return *value* (nested maps, sequences, scalars) with non-finite floats as strings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else _spell(value)
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    msg = f"not JSON: {type(value).__name__}"
    raise TypeError(msg)


def _spell(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
