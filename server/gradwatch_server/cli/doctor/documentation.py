"""The tables of docs/doctor.md: a line for each check, as it is registered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from gradwatch_server.cli.doctor.check import Check
from gradwatch_server.cli.doctor.client import CLIENT_CHECKS
from gradwatch_server.cli.doctor.server import SERVER_CHECKS

TABLES: Final[dict[str, Iterable[Check[Any]]]] = {
    "<!-- The checks of an aggregator's machine, written by scripts/docs. -->\n": SERVER_CHECKS,
    "<!-- The checks from a training's side, written by scripts/docs. -->\n": CLIENT_CHECKS,
}
"""Where each table stands, and what is in it."""


def table(checks: Iterable[Check[Any]]) -> str:
    """Return the table of some checks."""
    rows = ["| check | looks at | error | warning |", "|---|---|---|---|"]
    rows += [
        f"| `{check.name}` | {check.looks_at} | {check.is_error} | {check.is_warning} |"
        for check in checks
    ]
    return "\n".join(rows) + "\n"
