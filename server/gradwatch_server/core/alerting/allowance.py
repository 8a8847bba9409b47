"""Allowance of the alerts of one attempt, by what their run has left."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradwatch_server.core.alerting.active_alert import ActiveAlert
from gradwatch_server.core.alerting.alert import News
from gradwatch_server.core.alerting.alert_budget import AlertBudget
from gradwatch_wire.health import Severity


@dataclass
class Allowance:
    """Decision whether an event of an alert is told now, or waits.

    Args:
        critical: Rules of which a critical event was told.

    Attributes:
        budget: Events that the run has left; its other attempts have the same one.
    """

    critical: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.budget = AlertBudget()

    def may_tell(self, own: ActiveAlert, severity: Severity, now_ns: int) -> bool:
        """Tell whether an event may be told now, and count it if it may.

        The first critical one of a rule is told in any case.
        """
        is_first = (
            severity is Severity.CRITICAL
            and not own.alert.silenced
            and own.alert.rule not in self.critical
        )
        if not self.budget.acquire(now_ns, severity) and not is_first:
            self.budget.num_delayed += not own.waits
            own.waits = True
            return False
        if is_first:
            self.critical.add(own.alert.rule)
        return True

    def may_update(self, own: ActiveAlert, news: tuple[News, ...], now_ns: int) -> bool:
        """Tell whether news may be told now; if not, they are told with the next ones.

        A higher severity is no matter of how often the alert told of itself: there are not many.
        """
        if News.SILENCE_ENDED in news:
            self.take(own, now_ns)
            return True
        is_due = News.SEVERITY in news or own.told.limit.allows(now_ns)
        return is_due and self.may_tell(own, own.alert.severity, now_ns)

    def take(self, own: ActiveAlert, now_ns: int) -> None:
        """Count an event that is told in any case: somebody asked for it, and it comes once."""
        self.budget.acquire(now_ns, own.alert.severity)
