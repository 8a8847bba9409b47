"""The table of what can be set of a target, from the definitions: `scripts/docs` writes it."""

from __future__ import annotations

import json
from typing import Any, Final

from gradwatch_server.notify.notifiers import NOTIFIERS
from gradwatch_server.notify.settings import Target

TABLE: Final = "<!-- The table of settings, written by scripts/docs. -->\n"


def table() -> str:
    """Return it as Markdown: key, default, types of target, meaning."""
    lines = ["| key | default | of type | what it is |", "|---|---|---|---|"]
    for key, field in Target.model_fields.items():
        types = [name for name, kind in NOTIFIERS.items() if key not in kind.unused]
        of = "all" if len(types) == len(NOTIFIERS) else ", ".join(f"`{name}`" for name in types)
        default = _shown(field.default)
        lines.append(f"| `{key}` | {default} | {of} | {field.description} |")
    return "\n".join(lines) + "\n"


def _shown(default: Any) -> str:
    """Return a default as it would be written in the file."""
    if default is None:
        return ""
    value = list(map(str, default)) if isinstance(default, tuple) else default
    return f"`{json.dumps(value)}`"
