"""What rules that others use have to be here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import ClassVar

from benchmarks.alerts.finding import INCIDENT_STEPS, Finding
from benchmarks.alerts.peers.series import Series


class Peer(ABC):
    """One set of rules with its defaults.

    Attributes:
        name: As it is shown.
        about: What it looks at, in a few words.
        ends: Whether the rule or the job ends at its first hit. Its hits are then told once per
            incident, and it goes on all the same, which is kinder than what it does.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    ends: ClassVar[bool] = False

    @abstractmethod
    def hits(self, series: Series) -> Iterable[Finding]:
        """Yield what it says of each step, in any order."""

    def findings(self, series: Series) -> list[Finding]:
        """Return the alerts that a person would get of a run, in the order of their steps."""
        hits = sorted(self.hits(series), key=lambda each: each.step)
        return list(_first_of_each(hits)) if self.ends else hits


def _first_of_each(hits: Iterable[Finding]) -> Iterator[Finding]:
    """Yield of the hits of each rule those that the one before is not close to."""
    last: dict[str, int] = {}
    for hit in hits:
        if hit.step - last.get(hit.rule, -INCIDENT_STEPS) >= INCIDENT_STEPS:
            yield hit
        last[hit.rule] = hit.step
