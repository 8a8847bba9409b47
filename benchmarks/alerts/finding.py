"""Findings: alerts as a person would get them, whichever set of rules raised them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gradwatch_wire.health import Severity

INCIDENT_STEPS: Final = 32
"""Alerts of one run that are closer than this are one incident."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One alert.

    Args:
        step: Step at whose record it was told, or last became a warning at least.
        rule: Name of the rule; of others' rules the name of ours that means the same.
        severity: As it was told.
        origin_step: Step at which it says that it began, None if it does not say.
        last_good_step: Last step at which it says that all was right, of what is only looked at now
            and then; None if it says none.
        layer: Layer in which it says that it began, None if it names none.
        rank: The one rank that it names, None if it names none or several.
        message: All of it in one line.
        cause: The cause that it states, empty for none.
    """

    step: int
    rule: str
    severity: Severity = Severity.WARNING
    origin_step: int | None = None
    last_good_step: int | None = None
    layer: str | None = None
    rank: int | None = None
    message: str = ""
    cause: str = ""

    @property
    def is_warning(self) -> bool:
        """Whether it is meant to wake somebody: more than `info`."""
        return self.severity is not Severity.INFO


def incidents(findings: Iterable[Finding]) -> list[list[Finding]]:
    """Return findings in the order of their steps, those of one incident together."""
    found: list[list[Finding]] = []
    for each in sorted(findings, key=lambda each: each.step):
        if found and each.step - found[-1][-1].step < INCIDENT_STEPS:
            found[-1].append(each)
        else:
            found.append([each])
    return found
