"""A small curve in one line of text: eight blocks on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from rich.text import Text

BLOCKS: Final = "▁▂▃▄▅▆▇█"
NONFINITE: Final = "▼"
ZERO: Final = "0"
MISSING: Final = "·"

_NONFINITE_STYLE: Final = "bold red"

LEAST_RANGE: Final = 0.7
"""Of logarithms that the eight blocks span at least: a tenth up and down is drawn nearly flat."""

_ROUNDING: Final = 1e-6
"""Of a block: without it a curve that never moves would waver between the two in the middle."""


def sparkline(values: Sequence[float | str | None], width: int) -> Text:
    """Return the newest *width* values, a character each.

    Args:
        values: As the API gives them, also `"NaN"` and `"Infinity"`; None where nothing is known.
    """
    numbers = [None if value is None else float(value) for value in values[-width:]]
    logs = [math.log(number) for number in numbers if number is not None and _is_drawn(number)]
    middle = (min(logs) + max(logs)) / 2 if logs else 0.0
    span = max(max(logs) - min(logs), LEAST_RANGE) if logs else LEAST_RANGE
    line = Text(" " * (width - len(numbers)))
    for number in numbers:
        mark = _mark(number, middle - span / 2, span)
        line.append(mark, _NONFINITE_STYLE if mark == NONFINITE else "")
    return line


def _is_drawn(number: float) -> bool:
    return math.isfinite(number) and number > 0


def _mark(number: float | None, low: float, span: float) -> str:
    if number is None:
        return MISSING
    if not math.isfinite(number):
        return NONFINITE
    if number <= 0:
        return ZERO
    place = (math.log(number) - low) / span * len(BLOCKS)
    return BLOCKS[min(int(place + _ROUNDING), len(BLOCKS) - 1)]
