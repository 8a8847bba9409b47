"""Use of the budgets of alerts by runs, for /metrics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gradwatch_server.budget_use import BudgetUse
from gradwatch_server.core.state import State
from gradwatch_server.storage.rows import NewAlertEvent

LOOK_NS: Final = 1_000_000_000
"""How often it is looked at all runs."""


class AlertUse:
    """Notes it as the engine goes on."""

    def __init__(self, state: State, use: BudgetUse) -> None:
        self._state = state
        self._use = use
        self._looked_ns = 0

    def look(self, now_ns: int) -> None:
        """Note how much the run with most has taken, and how many events had to wait."""
        if now_ns - self._looked_ns < LOOK_NS:
            return
        self._looked_ns = now_ns
        budgets = [run.alert_budget for run in self._state.runs.values()]
        events = self._use["alert_events"]
        events.used = max((own.used(now_ns) for own in budgets), default=0)
        events.num_refused += sum(own.take_delayed() for own in budgets)

    def note(self, events: Iterable[NewAlertEvent]) -> None:
        """Note how large the largest alert was since the start."""
        largest = self._use["alert_body_bytes"]
        largest.used = max(largest.used or 0, *(len(own.body) for own in events))
