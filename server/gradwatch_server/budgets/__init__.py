"""Budgets: how much of each thing peers may take, why, and what happens at the limit.

Each is something that peers can make grow, and what is beyond it is taken from the one who spends
it. Settings, metrics and documentation follow from this table; a file has those of one topic.
"""

from __future__ import annotations

from typing import Final

from gradwatch_server.budget import Budget
from gradwatch_server.budgets.http import HttpBudgets
from gradwatch_server.budgets.intake import IntakeBudgets
from gradwatch_server.budgets.logged import LoggedBudgets

__all__ = ["BUDGETS", "TABLE", "Budgets", "LoggedBudgets", "table"]

TABLE: Final = "<!-- The table of budgets, written by scripts/docs. -->\n"
"""Where the table stands in docs/operations.md."""


class Budgets(HttpBudgets, IntakeBudgets, LoggedBudgets):
    """All budgets, with what they are set to; fields are those of the last base first."""

    def logged(self) -> LoggedBudgets:
        """Return those that are facts of the log."""
        return LoggedBudgets(**self.model_dump(include=set(LoggedBudgets.model_fields)))


BUDGETS: Final = tuple(
    Budget.of(name, Budgets.model_fields[name], is_logged=name in LoggedBudgets.model_fields)
    for name in sorted(Budgets.model_fields, key=LoggedBudgets.model_fields.__contains__)
)
"""Every budget, in the order of the documentation."""


def table() -> str:
    """Return all budgets as a table in Markdown."""
    rows = [
        "| budget | default | of | what it is | why | at the limit |",
        "|---|---|---|---|---|---|",
    ]
    rows += [
        f"| `{own.name}` | {own.shown()} | {own.per} | {own.what} | {own.why} | {own.at_limit} |"
        for own in BUDGETS
    ]
    return "\n".join(rows) + "\n"
