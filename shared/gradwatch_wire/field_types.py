"""Types of the values in a body. Each reads a value, or refuses it with the path of its place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

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


class FieldType(ABC):
    """Type of a value."""

    __slots__ = ()

    @abstractmethod
    def read(self, value: object, where: str) -> Any:
        """Return a value as a record has it.

        Raises:
            ProtocolError: If it is none of this type.
        """

    def write(self, value: Any) -> Any:
        """Return the value of a record as msgpack takes it."""
        return value

    @property
    @abstractmethod
    def description(self) -> str:
        """Type and limit, as docs/protocol.md states them."""


@dataclass(frozen=True, slots=True)
class Integer(FieldType):
    """An integer.

    Args:
        low: Least value.
        high: Largest value.
    """

    low: int = 0
    high: int = MAX_SEQ

    def read(self, value: object, where: str) -> int:
        """Return the integer."""
        return checked_int(value, where, self.low, self.high)

    @property
    def description(self) -> str:
        """Bounds, those of a whole type by their powers of two."""
        high = {MAX_SEQ: "2^63-1", MAX_STEP: "2^53-1"}.get(self.high, str(self.high))
        return f"int {self.low}..{high}"


@dataclass(frozen=True, slots=True)
class Float(FieldType):
    """A float64, any: NaN and Inf are data."""

    def read(self, value: object, where: str) -> float:
        """Return the float."""
        if type(value) is not float:
            raise ProtocolError(expected="a float", got=describe(value), where=where)
        return value

    def write(self, value: Any) -> float:
        """Return it as a float."""
        return float(value)

    @property
    def description(self) -> str:
        """Type."""
        return "float 64"


@dataclass(frozen=True, slots=True)
class Flag(FieldType):
    """A boolean."""

    def read(self, value: object, where: str) -> bool:
        """Return the boolean."""
        if not isinstance(value, bool):
            raise ProtocolError(expected="a boolean", got=describe(value), where=where)
        return value

    @property
    def description(self) -> str:
        """Type."""
        return "bool"


@dataclass(frozen=True, slots=True)
class Text(FieldType):
    """A string.

    Args:
        max_bytes: Largest size in UTF-8.
    """

    max_bytes: int = MAX_NAME_BYTES

    def read(self, value: object, where: str) -> str:
        """Return the string."""
        return checked_str(value, where, self.max_bytes)

    @property
    def description(self) -> str:
        """Limit."""
        return f"str of at most {self.max_bytes:,} bytes"


@dataclass(frozen=True, slots=True)
class Binary(FieldType):
    """Bytes.

    Args:
        size: How many.
    """

    size: int

    def read(self, value: object, where: str) -> bytes:
        """Return the bytes."""
        return checked_bytes(value, where, self.size)

    @property
    def description(self) -> str:
        """Size."""
        return f"bin of {self.size} bytes"


@dataclass(frozen=True, slots=True)
class Packed(FieldType):
    """A column: `[dtype code, count, bytes]`."""

    def read(self, value: object, where: str) -> Column:
        """Return the column, if its parts agree."""
        return checked_column(value, where)

    @property
    def description(self) -> str:
        """Type."""
        return "column"


@dataclass(frozen=True, slots=True)
class Texts(FieldType):
    """An array of names.

    Args:
        limit: Names at most.
    """

    limit: int

    def read(self, value: object, where: str) -> tuple[str, ...]:
        """Return the names."""
        items = checked_array(value, where, self.limit)
        return tuple(checked_str(item, where, MAX_NAME_BYTES) for item in items)

    @property
    def description(self) -> str:
        """Limits."""
        return f"array of at most {self.limit:,} str, each of at most {MAX_NAME_BYTES} bytes"


@dataclass(frozen=True, slots=True)
class Indices(FieldType):
    """An array of indices of layers."""

    def read(self, value: object, where: str) -> tuple[int, ...]:
        """Return the indices."""
        items = checked_array(value, where, MAX_LAYERS)
        # All at once: a manifest of 2 MB has 640,000 of them, which took 0.3 s one by one.
        if items and (set(map(type, items)) != {int} or min(items) < 0 or max(items) >= MAX_LAYERS):
            for item in items:
                checked_int(item, where, 0, MAX_LAYERS - 1)
        return items

    def write(self, value: Any) -> list[int]:
        """Return a list."""
        return list(value)

    @property
    def description(self) -> str:
        """Limits."""
        return f"array of at most {MAX_LAYERS:,} int, each below the number of `names`"


@dataclass(frozen=True, slots=True)
class Label(FieldType):
    """A scalar."""

    def read(self, value: object, where: str) -> LabelValue:
        """Return the scalar."""
        if isinstance(value, str):
            return checked_str(value, where, MAX_TEXT_BYTES)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        raise ProtocolError(expected="a scalar", got=describe(value), where=where)

    @property
    def description(self) -> str:
        """Types and limit."""
        return f"str of at most {MAX_TEXT_BYTES:,} bytes, bool, int, float or nil"


@dataclass(frozen=True, slots=True)
class AnyJson(FieldType):
    """JSON-like data."""

    def read(self, value: object, where: str) -> Json:
        """Return the data."""
        return _checked_json(value, where, MAX_ALERT_DEPTH)

    @property
    def description(self) -> str:
        """Limit."""
        return f"any, nested at most {MAX_ALERT_DEPTH} deep"


@dataclass(frozen=True, slots=True)
class MapOf(FieldType):
    """A map of names.

    Args:
        limit: Names at most.
        item: Type of their values.
    """

    limit: int
    item: FieldType

    def read(self, value: object, where: str) -> dict[str, Any]:
        """Return the map."""
        if not isinstance(value, dict) or len(value) > self.limit:
            raise ProtocolError(
                expected=f"a map of at most {self.limit} keys", got=describe(value), where=where
            )
        read = self.item.read
        try:
            return {
                key if _is_name(key) else checked_str(key, where, MAX_NAME_BYTES): read(item, where)
                for key, item in value.items()
            }
        except ProtocolError:
            # Once more, now with the paths that a valid record does without.
            return {
                checked_str(key, where, MAX_NAME_BYTES): read(item, f"{where}.{ascii(key)[1:-1]}")
                for key, item in value.items()
            }

    def write(self, value: Any) -> dict[str, Any]:
        """Return a dict."""
        write = self.item.write
        return {name: write(item) for name, item in value.items()}

    @property
    def description(self) -> str:
        """Limit, and the type of the values."""
        return f"map of at most {self.limit} str to {self.item.description}"


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


def _checked_json(value: object, where: str, depth: int) -> Json:
    if depth < 0:
        raise ProtocolError(expected="less nesting", got=describe(value), where=where)
    if isinstance(value, Mapping):
        return {
            checked_str(key, where, MAX_NAME_BYTES): _checked_json(item, where, depth - 1)
            for key, item in value.items()
        }
    if isinstance(value, (tuple, list)):
        return [_checked_json(item, where, depth - 1) for item in value]
    return Label().read(value, where)
