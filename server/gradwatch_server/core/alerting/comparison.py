"""Alerts of one run under two sets of rules, side by side."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self, TypeAlias, cast


class Verdict(StrEnum):
    """Under which rules an alert fires."""

    BOTH = "both"
    ONLY_NOW = "only now"
    ONLY_BEFORE = "only before"
    NOT_JUDGED = "not judged"  # it fired before, in steps that are not kept any more


@dataclass(frozen=True, slots=True)
class Incident:
    """What an alert came to.

    Args:
        id: Of the alert.
        attempt: Attempt of the run.
        rule: Name of the rule.
        group: Group of layers.
        severity: The highest it had.
        first_step: First bad step.
        last_step: Last bad step; of one that fired on, the last that is known.
        resolved_step: Step at which it was resolved, None if it was not.
        layer: Layer of its origin, None where it cannot be known.
        num_layers: How many layers were bad in it.
        message: As it was last told.
    """

    id: str
    attempt: int
    rule: str
    group: str
    severity: str
    first_step: int
    last_step: int
    resolved_step: int | None
    layer: str | None
    num_layers: int
    message: str

    @classmethod
    def of(cls, alert: Mapping[str, Any]) -> Self:
        """Return that of an alert as `Alert.to_dict` gives it."""
        keys = [key for key in cls.__slots__ if key != "layer"]
        return cls(layer=alert["origin"]["layer"], **{key: alert[key] for key in keys})

    @property
    def end(self) -> float:
        """The step at which it was over."""
        return math.inf if self.resolved_step is None else self.resolved_step


@dataclass(frozen=True, slots=True)
class Compared:
    """One incident under both sets of rules."""

    verdict: Verdict
    now: Incident | None
    before: Incident | None

    @property
    def either(self) -> Incident:
        """The incident as it is now, else as it was."""
        return cast("Incident", self.now or self.before)


Key: TypeAlias = tuple[int, str, str]


def incidents(alerts: Iterable[Mapping[str, Any]]) -> list[Incident]:
    """Return what each alert came to, of all that was told of them, oldest first."""
    newest = {alert["id"]: alert for alert in alerts}
    return [Incident.of(alert) for alert in newest.values()]


def compare(
    now: Iterable[Incident], before: Iterable[Incident], judged: Mapping[int, int]
) -> list[Compared]:
    """Pair the incidents of the same rule and group that are at the same time.

    Args:
        now: Those under the new rules.
        before: Those under the old ones.
        judged: Attempt to the step from which on the new rules have judged it.
    """
    ours, theirs = _by_key(now), _by_key(before)
    rows = [
        row
        for key in {*ours, *theirs}
        for row in _pair(ours.get(key, ()), theirs.get(key, ()), judged)
    ]
    return sorted(rows, key=_place)


def _by_key(incidents: Iterable[Incident]) -> Mapping[Key, Sequence[Incident]]:
    found: dict[Key, list[Incident]] = defaultdict(list)
    for own in sorted(incidents, key=lambda own: own.first_step):
        found[own.attempt, own.rule, own.group].append(own)
    return found


def _pair(
    now: Sequence[Incident], before: Sequence[Incident], judged: Mapping[int, int]
) -> list[Compared]:
    rest, rows = list(before), []
    for own in now:
        other = next((other for other in rest if _overlap(own, other)), None)
        if other is not None:
            rest.remove(other)
        rows.append(Compared(Verdict.BOTH if other else Verdict.ONLY_NOW, own, other))
    for other in rest:
        seen = other.first_step >= judged.get(other.attempt, math.inf)
        verdict = Verdict.ONLY_BEFORE if seen else Verdict.NOT_JUDGED
        rows.append(Compared(verdict, None, other))
    return rows


def _overlap(one: Incident, other: Incident) -> bool:
    return one.first_step <= other.end and other.first_step <= one.end


def _place(row: Compared) -> tuple[int, int, str, str]:
    own = row.either
    return own.attempt, own.first_step, own.rule, own.group
