"""Incidents: which alert tells of what is wrong, and which ones only show it in another way.

Gradients that explode are a spike as well, raise the loss and may leave a layer dead. That is one
incident, and people are to be called once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_wire.health import Severity

FOLLOW_STEPS: Final = 32
"""Steps after the last bad one of an alert in which others are taken for consequences of it."""


@dataclass(frozen=True, slots=True)
class Cause:
    """An alert that others follow.

    Args:
        alert_id: Its id.
        severity: The highest that was told of it.
        last_step: Its last bad step.
    """

    alert_id: str
    severity: Severity
    last_step: int


class Incidents:
    """The newest alert of each rule that mattered more than `info`."""

    def __init__(self, causes: Mapping[str, Cause] | None = None) -> None:
        self._causes = dict(causes or {})

    def note(self, rule: str, alert: Alert) -> None:
        """Note that an alert of a rule fires, or is bad again."""
        if alert.severity is not Severity.INFO:
            self._causes[rule] = Cause(alert.id, alert.severity, alert.last_step)

    def cause_of(self, follows: Iterable[str], step: int) -> Cause | None:
        """Return the alert that one beginning at a step is a consequence of, None if of none.

        Args:
            follows: Rules whose alerts explain it, the best explanation first.
            step: The step.
        """
        for rule in follows:
            cause = self._causes.get(rule)
            if cause is not None and 0 <= step - cause.last_step <= FOLLOW_STEPS:
                return cause
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return plain data for `from_state_dict`."""
        return {rule: asdict(cause) for rule, cause in self._causes.items()}

    @classmethod
    def from_state_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Return what `state_dict` described."""
        return cls(
            {
                rule: Cause(**{**own, "severity": Severity(own["severity"])})
                for rule, own in plain.items()
            }
        )


def as_consequence(severity: Callable[[int], Severity], cause: Cause) -> Callable[[int], Severity]:
    """Return a severity that is `info` unless it is above that of the cause."""
    order = list(Severity)

    def capped(in_a_row: int) -> Severity:
        own = severity(in_a_row)
        return own if order.index(own) > order.index(cause.severity) else Severity.INFO

    return capped
