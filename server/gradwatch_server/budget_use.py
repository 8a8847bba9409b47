"""Use of each budget, and the peers that its limit cost something."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from gradwatch_server.budgets import BUDGETS, Budgets


@dataclass(slots=True)
class Use:
    """Use of one budget. One thread writes it, the one that keeps to it.

    Args:
        used: How much; where it is counted by peer or run, that of the one with most; None if
            nothing told.
        num_evicted: What had to go for others, since the start.
        num_refused: What was not taken, or had to wait, since the start.
    """

    used: float | None = None
    num_evicted: int = 0
    num_refused: int = 0


class BudgetUse:
    """The limits in force, and what is used of each; any thread may read it."""

    def __init__(self, limits: Budgets | None = None) -> None:
        self.limits = limits or Budgets()
        self._of = {budget.name: Use() for budget in BUDGETS}

    def __getitem__(self, name: str) -> Use:
        return self._of[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._of)

    def limit(self, name: str) -> float:
        """Return what a budget is set to."""
        return cast("float", getattr(self.limits, name))
