"""Signs of life of one attempt: when it was heard, when its newest step came, and its pace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from gradwatch_server.core.frames.frame import RankPart
from gradwatch_server.core.frames.step_order import NOWHERE, Place
from gradwatch_server.core.liveness import Liveness, look
from gradwatch_server.core.pace import Gaps, Pace, known_seconds
from gradwatch_server.core.session import Session
from gradwatch_wire.health import RankState
from gradwatch_wire.names import Scalar


@dataclass(slots=True)
class SignsOfLife:
    """Signs that an attempt trains. Times are nanoseconds since the epoch.

    Args:
        heard_ns: The last sign of life of any rank.
        resumed_ns: Since when all could reach the aggregator.
        stepped_ns: When the newest step came.
        is_evaluating: Whether a rank said so since the newest step.
        was_away: Whether the aggregator was away since then.
        is_troubled: Whether an alert about liveness is active.
        place: Position of the newest step.
    """

    heard_ns: int
    resumed_ns: int
    stepped_ns: int
    is_evaluating: bool = False
    was_away: bool = False
    is_troubled: bool = False
    place: Place = NOWHERE
    _pace: Pace = field(default_factory=Pace)

    @classmethod
    def of(cls, started_ns: int) -> Self:
        """Return those of an attempt that has just begun."""
        return cls(started_ns, started_ns, started_ns)

    def resume(self, now_ns: int) -> None:
        """Note that the aggregator was away until now."""
        self.resumed_ns, self.was_away = now_ns, True

    def advance(self, place: Place, part: RankPart, num_steps: int, now_ns: int) -> None:
        """Note a step that is newer than all before, and how long it took to come.

        Args:
            place: Its position.
            part: The first record of it.
            num_steps: How many steps its rank took since its last record.
            now_ns: The time it is.
        """
        claimed = known_seconds(part.scalars.get(Scalar.STEP_TIME_S))
        claimed = None if claimed is None else known_seconds(claimed * max(num_steps, 1))
        seen = None if self.was_away else (now_ns - self.stepped_ns) / 1e9
        known = [gap for gap in (claimed, seen) if gap is not None]
        if known and self.place > NOWHERE:
            self._pace.add(max(known), training=not self.is_evaluating)
        self.place, self.stepped_ns = place, now_ns
        self.is_evaluating = self.was_away = False

    def gaps(self) -> Gaps:
        """Return what the gaps between its steps come to."""
        return self._pace.gaps()

    def look(self, sessions: Mapping[int, Session], now_ns: int, *, from_files: bool) -> Liveness:
        """Return how alive the attempt is.

        Args:
            sessions: Its sessions by rank.
            now_ns: The time it is.
            from_files: Whether all of them are sent from spill files.
        """
        ranks = tuple(
            look((sessions[rank] for rank in sorted(sessions)), now_ns, from_files=from_files)
        )
        return Liveness(
            received_ns=now_ns,
            place=self.place,
            step=max(self.place[1], 0),
            ranks=ranks,
            idle_s=min((rank.idle_s for rank in ranks if rank.lives), default=None),
            gaps=self.gaps(),
            evaluating=self.is_evaluating,
            is_over=all(own.state is RankState.ENDED for own in sessions.values()),
        )
