"""An alert as plain data, made to fit: the same is said, with fewer and shorter names.

What is told must be readable to whoever it is told to: the wire takes no text above 4,096 bytes,
and peers choose how long their names are, and of which characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from gradwatch_server.core.alerting.wording import cut
from gradwatch_wire.jsonable import jsonable

NAMES_BYTES: Final = 4_096
"""The names of one list, as JSON."""

MAX_RANKS: Final = 128
"""Ranks that a list names; how many there are is beside it."""

_SMALLER: Final = (NAMES_BYTES, 1_024, 512, 256, 128, 64)
"""Bytes of one name and of one list, as far as it takes; a message has three times as many."""

_WHOLE: Final = ("id", "run", "rule", "group", "hints")
"""Keys of what others are found by, or what no peer chose."""


def first_names(names: Iterable[str], limit: int, num_bytes: int = NAMES_BYTES) -> tuple[str, ...]:
    """Return the first names, at most so many and of so many bytes as JSON."""
    shown: list[str] = []
    rest = num_bytes
    for name in names:
        rest -= _size(name) + 2
        if rest < 0 or len(shown) == limit:
            break
        shown.append(name)
    return tuple(shown)


def fitted(plain: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return plain data of an alert that take at most so many bytes as JSON, 12,288 or more."""
    if _size(plain) <= limit:
        return plain
    for bound in _SMALLER:
        smaller = {key: _bounded(key, value, bound) for key, value in plain.items()}
        if _size(smaller) <= limit:
            break
    return smaller


def _bounded(key: str, value: Any, bound: int) -> Any:
    if key in _WHOLE:
        return value
    if isinstance(value, str):
        return _cut(value, 3 * bound if key == "message" else bound)
    if isinstance(value, Mapping):
        return {key: _bounded(key, item, bound) for key, item in value.items()}
    if isinstance(value, Sequence):
        return _bounded_list(key, value, bound)
    return value


def _bounded_list(key: str, values: Sequence[Any], bound: int) -> Sequence[Any]:
    if any(isinstance(value, Mapping) for value in values):
        return [_bounded(key, value, bound) for value in values]
    items: list[Any] = []
    rest = bound
    for value in values:
        rest -= _size(value) + 2
        if rest < 0:
            break
        items.append(value)
    return items


def _cut(text: str, num_bytes: int) -> str:
    """Return a text of at most so many bytes as JSON."""
    while (size := _size(text)) > num_bytes:
        text = cut(text, max(1, min(len(text) - 1, len(text) * num_bytes // size)))
    return text


def _size(value: Any) -> int:
    """Return the bytes as JSON."""
    return len(json.dumps(jsonable(value)))
