"""Typed access to a decoded body map: each wrong value becomes a `ProtocolError` with its path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar, overload

from gradwatch_wire.errors import ProtocolError, describe
from gradwatch_wire.limits import MAX_ALERT_DEPTH, MAX_NAME_BYTES, MAX_TEXT_BYTES
from gradwatch_wire.packed_column import ITEMSIZE, Column
from gradwatch_wire.records import Json, LabelValue

T = TypeVar("T")

_MISSING = object()


class Reader:
    """Reads keys of one map.

    A key with a default may be missing; unknown keys are ignored (rule 1 of evolution).
    """

    __slots__ = ("_body", "_where")

    def __init__(self, body: object, where: str) -> None:
        if not isinstance(body, dict):
            raise ProtocolError(expected="a map", got=describe(body), where=where)
        self._body = body
        self._where = where

    def _get(self, key: str, default: object) -> tuple[Any, str]:
        where = f"{self._where}.{key}"
        value = self._body.get(key, default)
        if value is _MISSING:
            raise ProtocolError(expected="this key", got="nothing", where=where)
        return value, where

    def has(self, key: str) -> bool:
        """Tell whether a key is there."""
        return key in self._body

    def integer(self, key: str, low: int, high: int, default: object = _MISSING) -> int:
        """Return an integer of low..high."""
        return checked_int(*self._get(key, default), low, high)

    def number(self, key: str, default: object = _MISSING) -> float:
        """Return a float, any float: NaN and Inf are data."""
        return checked_float(*self._get(key, default))

    def flag(self, key: str, default: object = _MISSING) -> bool:
        """Return a boolean."""
        value, where = self._get(key, default)
        if not isinstance(value, bool):
            raise ProtocolError(expected="a boolean", got=describe(value), where=where)
        return value

    def name(self, key: str, default: object = _MISSING) -> str:
        """Return a string of at most `MAX_NAME_BYTES`."""
        return checked_str(*self._get(key, default), MAX_NAME_BYTES)

    def text(self, key: str, default: object = _MISSING) -> str:
        """Return a string of at most `MAX_TEXT_BYTES`."""
        return checked_str(*self._get(key, default), MAX_TEXT_BYTES)

    def exact_bytes(self, key: str, size: int) -> bytes:
        """Return exactly *size* bytes."""
        return checked_bytes(*self._get(key, _MISSING), size)

    @overload
    def column(self, key: str) -> Column: ...

    @overload
    def column(self, key: str, default: None) -> Column | None: ...

    def column(self, key: str, default: object = _MISSING) -> Column | None:
        """Return a packed column."""
        value, where = self._get(key, default)
        return None if value is default else checked_column(value, where)

    def names(self, key: str, most: int, default: object = _MISSING) -> tuple[str, ...]:
        """Return an array of names."""
        value, where = self._get(key, default)
        items = checked_array(value, where, most)
        return tuple(checked_str(item, where, MAX_NAME_BYTES) for item in items)

    def map(self, key: str, most: int, item: Callable[[Any, str], T]) -> dict[str, T]:
        """Return a map from names to what *item* reads; empty when missing."""
        value, where = self._get(key, {})
        return checked_map(value, where, most, item)


def checked_int(value: object, where: str, low: int, high: int) -> int:
    """Return *value* if it is an integer of low..high."""
    if type(value) is not int or not low <= value <= high:
        raise ProtocolError(expected=f"an integer {low}..{high}", got=describe(value), where=where)
    return value


def checked_float(value: object, where: str) -> float:
    """Return *value* if it is a float."""
    if type(value) is not float:
        raise ProtocolError(expected="a float", got=describe(value), where=where)
    return value


def checked_str(value: object, where: str, most: int) -> str:
    """Return *value* if it is a string of at most *most* bytes."""
    # A character takes at least one byte, so short ASCII strings need no encoding to be measured.
    if (
        not isinstance(value, str)
        or len(value) > most
        or (not value.isascii() and _utf8_size(value, where) > most)
    ):
        raise ProtocolError(
            expected=f"a string of at most {most} bytes", got=describe(value), where=where
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


def checked_array(value: object, where: str, most: int) -> tuple[Any, ...]:
    """Return *value* if it is an array of at most *most* items."""
    if not isinstance(value, (tuple, list)) or len(value) > most:
        raise ProtocolError(
            expected=f"an array of at most {most} items", got=describe(value), where=where
        )
    return tuple(value)


@lru_cache(maxsize=1_024)
def _is_name(key: object) -> bool:
    """Tell whether a key of a map needs no closer look: all records have the same few."""
    return type(key) is str and len(key) <= MAX_NAME_BYTES and key.isascii()


def checked_map(
    value: object, where: str, most: int, item: Callable[[Any, str], T]
) -> dict[str, T]:
    """Return *value* if it is a map of at most *most* names, each value read by *item*."""
    if not isinstance(value, dict) or len(value) > most:
        raise ProtocolError(
            expected=f"a map of at most {most} keys", got=describe(value), where=where
        )
    try:
        return {
            key if _is_name(key) else checked_str(key, where, MAX_NAME_BYTES): item(entry, where)
            for key, entry in value.items()
        }
    except ProtocolError:
        # Once more, now with the paths that a valid record does without.
        return {
            checked_str(key, where, MAX_NAME_BYTES): item(entry, f"{where}.{ascii(key)[1:-1]}")
            for key, entry in value.items()
        }


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


def checked_label(value: object, where: str) -> LabelValue:
    """Return *value* if it is a scalar."""
    if isinstance(value, str):
        return checked_str(value, where, MAX_TEXT_BYTES)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise ProtocolError(expected="a scalar", got=describe(value), where=where)


def checked_json(value: object, where: str, depth: int = MAX_ALERT_DEPTH) -> Json:
    """Return *value* if it is JSON-like and nested at most *depth* deep."""
    if depth < 0:
        raise ProtocolError(expected="less nesting", got=describe(value), where=where)
    if isinstance(value, Mapping):
        return {
            checked_str(key, where, MAX_NAME_BYTES): checked_json(item, where, depth - 1)
            for key, item in value.items()
        }
    if isinstance(value, (tuple, list)):
        return [checked_json(item, where, depth - 1) for item in value]
    return checked_label(value, where)
