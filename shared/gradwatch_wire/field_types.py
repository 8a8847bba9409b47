"""Types of the values in a body. Each reads a value, or refuses it with the path of its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, TypeAlias

from gradwatch_wire.errors import ProtocolError, describe
from gradwatch_wire.limits import (
    MAX_ALERT_DEPTH,
    MAX_LAYERS,
    MAX_NAME_BYTES,
    MAX_SEQ,
    MAX_STEP,
    MAX_TEXT_BYTES,
)
from gradwatch_wire.packed_column import ITEMSIZE, Column
from gradwatch_wire.records import Json, LabelValue

Read: TypeAlias = Callable[[Any, str], Any]
"""Returns a value as a record has it, given its path too; raises `ProtocolError`."""


def _unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class FieldType:
    """Type of a value.

    Args:
        kind: Python type of the value; of a column `Column`, of any of several `object`.
        limit: Largest value, bytes of a text, keys of a map.
    """

    kind: type
    description: str
    read: Read
    write: Callable[[Any], Any] = _unchanged
    low: int = 0
    limit: int = 0
    item: FieldType | None = None


def integer(low: int = 0, high: int = MAX_SEQ) -> FieldType:
    """Return the type of integers from *low* to *high*."""

    def read(value: object, where: str) -> int:
        return checked_int(value, where, low, high)

    shown = {MAX_SEQ: "2^63-1", MAX_STEP: "2^53-1"}.get(high, str(high))
    return FieldType(int, f"int {low}..{shown}", read, low=low, limit=high)


def text(max_bytes: int = MAX_NAME_BYTES) -> FieldType:
    """Return the type of strings of at most so many bytes."""

    def read(value: object, where: str) -> str:
        return checked_str(value, where, max_bytes)

    return FieldType(str, f"str of at most {max_bytes:,} bytes", read, limit=max_bytes)


def binary(size: int) -> FieldType:
    """Return the type of so many bytes."""

    def read(value: object, where: str) -> bytes:
        return checked_bytes(value, where, size)

    return FieldType(bytes, f"bin of {size} bytes", read)


def names(limit: int) -> FieldType:
    """Return the type of arrays of at most so many names."""

    def read(value: object, where: str) -> tuple[str, ...]:
        items = checked_array(value, where, limit)
        return tuple(checked_str(item, where, MAX_NAME_BYTES) for item in items)

    what = f"array of at most {limit:,} str, each of at most {MAX_NAME_BYTES} bytes"
    return FieldType(tuple, what, read)


def map_of(limit: int, item: FieldType) -> FieldType:
    """Return the type of maps of at most so many names to values of a type."""

    def read(value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > limit:
            raise ProtocolError(
                expected=f"a map of at most {limit} keys", got=describe(value), where=where
            )
        try:
            return {
                key if _is_name(key) else checked_str(key, where, MAX_NAME_BYTES): item.read(
                    entry, where
                )
                for key, entry in value.items()
            }
        except ProtocolError:
            # Once more, now with the paths that a valid record does without.
            return {
                checked_str(key, where, MAX_NAME_BYTES): item.read(
                    entry, f"{where}.{ascii(key)[1:-1]}"
                )
                for key, entry in value.items()
            }

    def write(value: Mapping[str, Any]) -> dict[str, Any]:
        return {name: item.write(entry) for name, entry in value.items()}

    what = f"map of at most {limit} str to {item.description}"
    return FieldType(dict, what, read, write, limit=limit, item=item)


def _read_float(value: object, where: str) -> float:
    if type(value) is not float:
        raise ProtocolError(expected="a float", got=describe(value), where=where)
    return value


def _read_flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ProtocolError(expected="a boolean", got=describe(value), where=where)
    return value


def _read_indices(value: object, where: str) -> tuple[int, ...]:
    items = checked_array(value, where, MAX_LAYERS)
    # All at once: a manifest of 2 MB has 640,000 of them, which took 0.3 s one by one.
    if items and (set(map(type, items)) != {int} or min(items) < 0 or max(items) >= MAX_LAYERS):
        for item in items:
            checked_int(item, where, 0, MAX_LAYERS - 1)
    return items


def _read_label(value: object, where: str) -> LabelValue:
    if isinstance(value, str):
        return checked_str(value, where, MAX_TEXT_BYTES)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise ProtocolError(expected="a scalar", got=describe(value), where=where)


def _read_json(value: object, where: str, depth: int = MAX_ALERT_DEPTH) -> Json:
    if depth < 0:
        raise ProtocolError(expected="less nesting", got=describe(value), where=where)
    if isinstance(value, Mapping):
        return {
            checked_str(key, where, MAX_NAME_BYTES): _read_json(item, where, depth - 1)
            for key, item in value.items()
        }
    if isinstance(value, (tuple, list)):
        return [_read_json(item, where, depth - 1) for item in value]
    return _read_label(value, where)


def checked_int(value: object, where: str, low: int, high: int) -> int:
    """Return *value* if it is an integer of low..high."""
    if type(value) is not int or not low <= value <= high:
        raise ProtocolError(expected=f"an integer {low}..{high}", got=describe(value), where=where)
    return value


def checked_str(value: object, where: str, limit: int) -> str:
    """Return *value* if it is a string of at most *limit* bytes."""
    # A character takes at least one byte, so short ASCII strings need no encoding to be measured.
    if (
        not isinstance(value, str)
        or len(value) > limit
        or (not value.isascii() and _utf8_size(value, where) > limit)
    ):
        raise ProtocolError(
            expected=f"a string of at most {limit} bytes", got=describe(value), where=where
        )
    return value


def _utf8_size(value: str, where: str) -> int:
    try:
        return len(value.encode())
    except UnicodeEncodeError:
        raise ProtocolError(
            expected="text without lone surrogates", got=describe(value), where=where
        ) from None


def checked_bytes(value: object, where: str, size: int) -> bytes:
    """Return *value* if it is exactly *size* bytes."""
    if not isinstance(value, bytes) or len(value) != size:
        raise ProtocolError(expected=f"{size} bytes", got=describe(value), where=where)
    return value


def checked_array(value: object, where: str, limit: int) -> tuple[Any, ...]:
    """Return *value* if it is an array of at most *limit* items."""
    if not isinstance(value, (tuple, list)) or len(value) > limit:
        raise ProtocolError(
            expected=f"an array of at most {limit} items", got=describe(value), where=where
        )
    return tuple(value)


@lru_cache(maxsize=1_024)
def _is_name(key: object) -> bool:
    """Tell whether a key of a map needs no closer look: all records have the same few."""
    return type(key) is str and len(key) <= MAX_NAME_BYTES and key.isascii()


def checked_column(value: object, where: str) -> Column:
    """Return *value*, `(dtype code, count, bytes)`, if its parts agree."""
    if not isinstance(value, (tuple, list)) or len(value) != 3:
        raise ProtocolError(expected="[code, count, bytes]", got=describe(value), where=where)
    code, count, data = value
    itemsize = ITEMSIZE.get(code) if type(code) is str else None
    if itemsize is None:
        expected = f"a dtype code of {' '.join(ITEMSIZE)}"
        raise ProtocolError(expected=expected, got=describe(code), where=f"{where}.code")
    if not isinstance(data, bytes):
        raise ProtocolError(expected="bytes", got=describe(data), where=f"{where}.data")
    if type(count) is not int or len(data) != count * itemsize:
        raise ProtocolError(
            expected=f"a count of {len(data) / itemsize:g} for {len(data)} bytes",
            got=describe(count),
            where=f"{where}.count",
        )
    return Column(code, count, data)


FLOAT: Final = FieldType(float, "float 64", _read_float, float)
"""Any float64: NaN and Inf are data."""

FLAG: Final = FieldType(bool, "bool", _read_flag)
COLUMN: Final = FieldType(Column, "column", checked_column)
INDICES: Final = FieldType(
    tuple,
    f"array of at most {MAX_LAYERS:,} int, each below the number of `names`",
    _read_indices,
    list,
)
LABEL: Final = FieldType(
    object, f"str of at most {MAX_TEXT_BYTES:,} bytes, bool, int, float or nil", _read_label
)
JSON: Final = FieldType(object, f"any, nested at most {MAX_ALERT_DEPTH} deep", _read_json)
