"""Rules about ranks: evaluated by how alive they are, each has one alert for all affected ranks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Final

from pydantic import Field

from gradwatch_server.core.alerting.evaluation import NOT_WORSE, Context, Evaluation, Verdict
from gradwatch_server.core.alerting.origin import Origin
from gradwatch_server.core.alerting.rules.base import Rule
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.liveness import Liveness, RankLiveness

RANKS: Final = "ranks"
"""The group of alerts about ranks."""

MAX_LISTED: Final = 8
"""Steps in a note, and ranks at each of them."""

AT_ONCE: Final = "It fires at once; no other value is allowed."
OVER_AT_ONCE: Final = "It is resolved at once; no other value is allowed."

Once = Annotated[int, Field(ge=1, le=1)]


class LivenessRule(Rule):
    """A rule about time and signs of life, which frames do not count."""

    takes = (Liveness,)

    for_steps: Once = Field(1, description=AT_ONCE)
    clear_steps: Once = Field(1, description=OVER_AT_ONCE)


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
            origin=lambda _: self.origin(affected, observation),
            severity=lambda _: self.severity,
            extend=partial(self.extended, affected=affected),
            # The same rank may be found at the same step again.
            key="" if first is None else f"{self.group}/{first.rank}/{first.since_ns}",
            excess=NOT_WORSE,
        )

    def origin(self, affected: Sequence[RankLiveness], observation: Liveness) -> Origin:
        """Return which ranks it is, and the last step of the one that is least far."""
        ranks = tuple(rank.rank for rank in affected)
        step = max(min(rank.step for rank in affected), 0)
        one = ranks[0] if len(ranks) == 1 else None
        value, notes = self.value(affected), last_steps(observation)
        return Origin(step, one, ranks, None, None, value, self.limit(), notes=notes)

    def extended(self, origin: Origin, affected: Sequence[RankLiveness]) -> Origin:
        """Return *origin* with the ranks that joined since; it stays where it began."""
        ranks = tuple(sorted({*origin.ranks, *(rank.rank for rank in affected)}))
        one = ranks[0] if len(ranks) == 1 else None
        return replace(origin, rank=one, ranks=ranks, value=self.value(affected))


def last_steps(observation: Liveness) -> tuple[str, ...]:
    """Return the last step of each rank as a note, the lowest first; none of a single rank."""
    ranks_at: dict[int, list[int]] = {}
    for rank in observation.ranks:
        ranks_at.setdefault(rank.step, []).append(rank.rank)
    if len(observation.ranks) < 2:
        return ()
    parts = [f"{_step(step)} {_listed(ranks_at[step])}" for step in sorted(ranks_at)[:MAX_LISTED]]
    return (f"last step of each rank: {', '.join(parts)}",)


def _step(step: int) -> str:
    return "none of" if step < 0 else f"{step} of"


def _listed(ranks: Sequence[int]) -> str:
    more = ", …" if len(ranks) > MAX_LISTED else ""
    return (
        f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks[:MAX_LISTED]))}{more}"
    )
