"""The tables of docs/protocol.md: every key of every body, from the code that reads it.

Each reader of the wire is run over a body that has every key and says yes to everything, and what
it asks for is written down. What a key means is in the docstring of the record.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Final

from gradwatch_wire import (
    Ack,
    Alert,
    Beat,
    Bye,
    Column,
    Event,
    Gains,
    Hello,
    Kind,
    Manifest,
    Refuse,
    Stats,
    Welcome,
)
from gradwatch_wire import limits as own
from gradwatch_wire.bodies import READERS, _counter, _indices, _text
from gradwatch_wire.reader import (
    _MISSING,
    Reader,
    checked_column,
    checked_float,
    checked_json,
    checked_label,
)

BEGIN: Final = "<!-- The keys of all bodies, written by scripts/docs. -->\n"

RECORDS: Final = (Hello, Welcome, Manifest, Stats, Gains, Event, Beat, Bye, Ack, Alert, Refuse)

FIELDS: Final = {"MANIFEST.id": "manifest_id", "STATS.manifest": "manifest_id"}
"""Keys whose field has another name."""

ITEMS: Final[dict[Any, str]] = {
    _text: f"str of at most {own.MAX_TEXT_BYTES:,} bytes",
    _counter: "int 0..2^63-1",
    _indices: f"array of at most {own.MAX_LAYERS:,} int, each below the number of `names`",
    checked_label: f"str of at most {own.MAX_TEXT_BYTES:,} bytes, bool, int, float or nil",
    checked_float: "float 64",
    checked_column: "column",
    checked_json: f"any, nested at most {own.MAX_ALERT_DEPTH} deep",
}


class Asked(Reader):
    """Writes down what is asked of a body, and answers with the least that will do."""

    __slots__ = ("rows",)

    def __init__(self, kind: str) -> None:
        super().__init__({}, kind)
        self.rows: list[tuple[str, str, str]] = []  # key, type with limit, default

    def _note(self, key: str, what: str, default: object) -> None:
        shown = "required" if default is _MISSING else _shown(default)
        if key in self._body:  # it was asked for whether it is there
            shown = "absent"
        self.rows.append((key, what, shown))

    def has(self, key: str) -> bool:
        self._body[key] = None
        return True

    def integer(self, key: str, low: int, high: int, default: object = _MISSING) -> int:
        self._note(key, f"int {_bound(low)}..{_bound(high)}", default)
        return high

    def number(self, key: str, default: object = _MISSING) -> float:
        self._note(key, "float 64", default)
        return 0.0

    def flag(self, key: str, default: object = _MISSING) -> bool:
        self._note(key, "bool", default)
        return False

    def name(self, key: str, default: object = _MISSING) -> str:
        self._note(key, f"str of at most {own.MAX_NAME_BYTES} bytes", default)
        return ""

    def text(self, key: str, default: object = _MISSING) -> str:
        self._note(key, f"str of at most {own.MAX_TEXT_BYTES:,} bytes", default)
        return ""

    def exact_bytes(self, key: str, size: int) -> bytes:
        self._note(key, f"bin of {size} bytes", _MISSING)
        return bytes(size)

    def column(self, key: str, default: object = _MISSING) -> Any:
        self._note(key, "column", default)
        return Column.of("<u8", b"") if default is _MISSING else None

    def names(self, key: str, most: int, default: object = _MISSING) -> tuple[str, ...]:
        what = f"array of at most {most:,} str, each of at most {own.MAX_NAME_BYTES} bytes"
        self._note(key, what, default)
        return ()

    def map(self, key: str, most: int, item: Callable[..., Any]) -> dict[str, Any]:
        self._note(key, f"map of at most {most} str to {ITEMS[item]}", {})
        return {}


def _bound(value: int) -> str:
    known = {own.MAX_SEQ: "2^63-1", own.MAX_STEP: "2^53-1"}
    return known.get(value, str(value))


def _shown(default: object) -> str:
    if default is None:
        return "absent"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, str):
        return f'`"{default}"`'
    return "empty" if default in ((), {}) else f"`{default}`"


def tables() -> str:
    """Return a section for each kind of record, in the order of their numbers."""
    return "\n".join(_table(kind, record) for kind, record in zip(Kind, RECORDS, strict=True))


def _table(kind: Kind, record: type) -> str:
    asked = Asked(kind.name)
    READERS[kind](asked)
    meaning = _meanings(record)
    rows = [
        f"| `{key}` | {what} | {default} | {meaning[FIELDS.get(f'{kind.name}.{key}', key)]} |"
        for key, what, default in asked.rows
    ]
    lines = [
        *(f"### {kind.name}", ""),
        *("| key | type and limit | default | what it is |", "|---|---|---|---|", *rows, ""),
    ]
    return "\n".join(lines)


def _meanings(record: type) -> dict[str, str]:
    """Return what the docstring of a record says of each field; without fields, of the whole."""
    doc = inspect.getdoc(record) or ""
    first, _, arguments = doc.partition("Args:\n")
    found = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", arguments, re.MULTILINE | re.DOTALL)
    if not found:
        (field,) = record.__dataclass_fields__  # type: ignore[attr-defined]  # a dataclass
        found = [(field, first)]
    return {name: " ".join(text.split()).replace("|", "\\|") for name, text in found}
