"""Incidents: which alert tells of what is wrong, and which ones only show it in another way.

Gradients that explode are a spike as well, raise the loss and may leave a layer dead. That is one
incident, and people are to be called once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.severities import is_worse
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
        group: Its group.
    """

    alert_id: str
    severity: Severity
    last_step: int
    group: str


@dataclass(slots=True)
class Incidents:
    """The newest alert of each rule that mattered more than `info`."""

    _causes: dict[str, Cause] = field(default_factory=dict)

    def note(self, rule: str, alert: Alert, last_step: int) -> None:
        """Note that an alert of a rule fires, or is bad again.

        One that nobody is told of explains nothing to anybody: what it led to is told by itself.
        """
        if alert.silenced:
            if (known := self._causes.get(rule)) is not None and known.alert_id == alert.id:
                del self._causes[rule]
        elif alert.severity is not Severity.INFO:
            self._causes[rule] = Cause(alert.id, alert.severity, last_step, alert.group)

    def cause_of(
        self,
        follows: Iterable[str],
        step: int,
        *,
        of: str = "",
        again: tuple[str, str] | None = None,
    ) -> Cause | None:
        """Return the alert that one beginning at a step is a consequence of, None if of none.

        Args:
            follows: Rules whose alerts explain it, the best explanation first.
            step: The step.
            of: Id of the alert that it is asked for, which is no consequence of itself.
            again: Its rule and group, if it may be the same once more that was over.
        """
        for rule in follows:
            cause = self._causes.get(rule)
            if cause is not None and cause.alert_id != of and _is_soon(step, cause):
                return cause
        if again is None:
            return None
        rule, group = again
        cause = self._causes.get(rule)
        is_same = cause is not None and cause.group == group and cause.alert_id != of
        return cause if is_same and cause is not None and _is_soon(step, cause) else None


def as_consequence(
    severity: Callable[[int], Severity], cause: Cause, *, goes_on: bool
) -> Callable[[int], Severity]:
    """Return the severity of what is a consequence.

    It is `info` as long as the cause fires, which is then told to be as severe as it. Once that is
    over it is `info` unless it is above that of the cause.
    """

    def capped(in_a_row: int) -> Severity:
        if goes_on:
            return Severity.INFO
        own = severity(in_a_row)
        return own if is_worse(own, cause.severity) else Severity.INFO

    return capped


def _is_soon(step: int, cause: Cause) -> bool:
    return 0 <= step - cause.last_step <= FOLLOW_STEPS
