"""The tables of docs/protocol.md: every key of every body, from the schema.

The meaning of a key is in the docstring of the record.
"""

from __future__ import annotations

import inspect
import re
from typing import Final

from gradwatch_wire.schema import REQUIRED, SCHEMAS, Field, Schema

BEGIN: Final = "<!-- The keys of all bodies, written by scripts/docs. -->\n"


def _default(field: Field) -> str:
    default = field.default
    if default is REQUIRED:
        return "required"
    if default is None:
        return "absent"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, str):
        return f'`"{default}"`'
    return "empty" if default in ((), {}) else f"`{default}`"


def tables() -> str:
    """Return a section for each kind of record, in the order of their numbers."""
    return "\n".join(map(_table, SCHEMAS))


def _table(schema: Schema) -> str:
    meaning = _meanings(schema.record)
    rows = [
        f"| `{field.key}` | {field.type.description} | {_default(field)} | {meaning[field.name]} |"
        for field in schema.fields
    ]
    lines = [
        *(f"### {schema.kind.name}", ""),
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
