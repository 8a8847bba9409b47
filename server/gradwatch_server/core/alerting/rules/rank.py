"""Rules about ranks: evaluated by how alive they are, each has one alert for all affected ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Final

import numpy as np
from pydantic import Field

from gradwatch_server.core.alerting.evaluation import Context, Evaluation, Verdict
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import Rule
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.liveness import Liveness, RankLiveness

RANKS: Final = "ranks"
"""The group of alerts about ranks."""

AT_ONCE: Final = "It fires at once; no other value is allowed."
OVER_AT_ONCE: Final = "It is resolved at once; no other value is allowed."

Once = Annotated[int, Field(ge=1, le=1)]


class LivenessRule(Rule):
    """A rule about time and signs of life, which frames do not count."""

    takes = (Liveness,)

    for_steps: Once = Field(1, description=AT_ONCE)
    clear_steps: Once = Field(1, description=OVER_AT_ONCE)


_NO_EXCESS: Final = np.ones(1)
"""That it lasts is no news: the severity says when it matters more."""


class RankRule(LivenessRule):
    """A rule that some ranks of an attempt are found by.

    Attributes:
        group: The group of its alerts.
    """

    group: ClassVar[str] = RANKS

    @abstractmethod
    def affected(self, observation: Liveness) -> Sequence[RankLiveness]:
        """Return the ranks that it is about, by rank."""

    def value(self, affected: Sequence[RankLiveness]) -> float:
        """Return the number that the origin tells."""
        return float(len(affected))

    def limit(self) -> float | None:
        """Return the limit that the origin tells, None if there is none."""
        return None

    def raised(self, observation: Liveness, context: Context) -> BoolArray:
        """Return whether any rank is affected, (1,)."""
        raised = bool(self.affected(observation))
        return Verdict.of_run(raised=raised, held=raised).raised

    def evaluate(
        self, observation: Liveness, raised: BoolArray, context: Context
    ) -> Iterator[Evaluation]:
        """Yield the one evaluation of all ranks."""
        affected = self.affected(observation)
        first = min(affected, key=lambda rank: (rank.since_ns, rank.rank), default=None)
        yield Evaluation(
            group=self.group,
            step=observation.step,
            received_ns=observation.received_ns,
            verdict=Verdict.of_run(raised=bool(affected), held=bool(affected)),
            names=(),
            origin=lambda _: self.origin(affected),
            severity=lambda _: self.severity,
            extend=partial(self.extended, affected=affected),
            # The same rank may be found at the same step again.
            key="" if first is None else f"{self.group}/{first.rank}/{first.since_ns}",
            excess=_NO_EXCESS,
        )

    def origin(self, affected: Sequence[RankLiveness]) -> Origin:
        """Return which ranks it is, and the last step of the one that is least far."""
        ranks = tuple(rank.rank for rank in affected)
        step = max(min(rank.step for rank in affected), 0)
        one = ranks[0] if len(ranks) == 1 else None
        return Origin(step, one, ranks, None, None, self.value(affected), self.limit())

    def extended(self, origin: Origin, affected: Sequence[RankLiveness]) -> Origin:
        """Return *origin* with the ranks that joined since; it stays where it began."""
        ranks = tuple(sorted({*origin.ranks, *(rank.rank for rank in affected)}))
        one = ranks[0] if len(ranks) == 1 else None
        return replace(origin, rank=one, ranks=ranks, value=self.value(affected))


def ranks_in_words(origin: Origin) -> str:
    """Return `a rank`, or how many."""
    return "a rank" if len(origin.ranks) == 1 else f"{len(origin.ranks)} ranks"
