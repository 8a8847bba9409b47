"""Budget of alert events of a run: so many at once, and so many a minute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gradwatch_server.budgets import LoggedBudgets
from gradwatch_wire.health import Severity

AT_ONCE: Final = 200
"""Events that a run may have at once: a fault in every one of 64 groups, three times over."""

MINUTE_NS: Final = 60_000_000_000

RESERVED: Final = {Severity.INFO: 4, Severity.WARNING: 8}
"""Part of the events that are kept for what matters more: a quarter, an eighth."""


@dataclass
class EventRate:
    """Events by the generic cell rate algorithm (ITU-T I.371), in the times of the log.

    Args:
        ahead_ns: Time at which all that was told would be due at the rate, nanoseconds since the
            epoch.
    """

    ahead_ns: int = 0

    def allows(self, now_ns: int, burst: int, interval_ns: int) -> bool:
        """Tell whether an event is allowed: *burst* at once, one an interval in the long run."""
        return self.ahead_ns - now_ns <= (burst - 1) * interval_ns

    def acquire(self, now_ns: int, burst: int, interval_ns: int) -> bool:
        """Tell whether an event is allowed, and count it if it is."""
        if not self.allows(now_ns, burst, interval_ns):
            return False
        self.ahead_ns = max(self.ahead_ns, now_ns) + interval_ns
        return True


@dataclass
class AlertBudget(EventRate):
    """Alert events that one run has left.

    Attributes:
        num_delayed: Events that had to wait, since that was asked last.
    """

    def __post_init__(self) -> None:
        self.limits = LoggedBudgets.unlimited()
        self.num_delayed = 0

    def may_tell(self, now_ns: int, severity: Severity) -> bool:
        """Tell whether an event is allowed, and count it if it is."""
        per_min = self.limits.alert_events_per_min
        interval_ns = MINUTE_NS // per_min  # 0 if any number may be had
        reserved = AT_ONCE // RESERVED[severity] if severity in RESERVED else 0
        if interval_ns:
            return self.acquire(now_ns, AT_ONCE - reserved, interval_ns)
        self.ahead_ns = max(self.ahead_ns, now_ns)
        return True

    def take_delayed(self) -> int:
        """Return how many events had to wait since this was asked last."""
        taken, self.num_delayed = self.num_delayed, 0
        return taken
