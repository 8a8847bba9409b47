"""Policy of a target: which alerts it wants, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gradwatch_server.core.alerting.rules.patterns import matches

_SEPARATOR: Final = "\x1f"
"""Between the values that a group is of: none of them has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Wishes of a target.

    Args:
        rules: Patterns of names of rules; all without.
        runs: Patterns of names of runs; all without.
        severities: Severities that are told.
        resolved: Whether the target hears of the end of an alert.
        group_by: Keys of an alert; alerts that have the same values go in one message.
        group_wait_s: How long a message waits for more alerts of its group.
        group_interval_s: Time between two messages of a group.
        min_firing_s: Time between the message that an alert fires and the one that it is over.
        resend_s: Time after which all that fires is sent again, to a receiver that takes for over
            what is not; 0 for never.
    """

    rules: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    severities: frozenset[str] = frozenset({"warning", "critical"})
    resolved: bool = True
    group_by: tuple[str, ...] = ("run",)
    group_wait_s: float = 10.0
    group_interval_s: float = 60.0
    min_firing_s: float = 0.0
    resend_s: float = 0.0

    def wants(self, alert: Mapping[str, Any]) -> bool:
        """Tell whether an alert, as it is stored, is one of those that are told."""
        return (
            alert["severity"] in self.severities
            and matches(self.rules, alert["rule"])
            and matches(self.runs, alert["run"])
        )

    def group_of(self, alert: Mapping[str, Any]) -> str:
        return _SEPARATOR.join(str(alert[key]) for key in self.group_by)
