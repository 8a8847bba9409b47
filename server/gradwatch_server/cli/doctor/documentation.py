"""The table of docs/doctor.md: a line for each check."""

from __future__ import annotations

from typing import Any, Final

from gradwatch_server.cli.doctor.client import CLIENT_CHECKS
from gradwatch_server.cli.doctor.report import Check
from gradwatch_server.cli.doctor.server import SERVER_CHECKS

TABLE: Final = "<!-- The checks, written by scripts/docs. -->\n"
"""Where the table stands."""


def table() -> str:
    """Return the table of all checks."""
    rows = ["| side | check | looks at |", "|---|---|---|"]
    sides: tuple[tuple[str, tuple[Check[Any], ...]], ...]
    sides = (("server", SERVER_CHECKS), ("client", CLIENT_CHECKS))
    for side, checks in sides:
        rows += [f"| {side} | `{check.name}` | {check.looks_at} |" for check in checks]
    return "\n".join(rows) + "\n"
