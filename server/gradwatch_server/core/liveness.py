"""Liveness: how long nothing was heard of ranks, how long no step came, and which ranks went."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np

from gradwatch_server.core.frames.frame import RankRecord
from gradwatch_server.core.frames.step_order import NOWHERE, Place
from gradwatch_server.core.session import RankSession
from gradwatch_wire.health import RankState
from gradwatch_wire.names import Scalar

GAPS: Final = 512
"""Gaps between steps of which the median is taken, the newest."""

WARM_UP: Final = 5
"""Gaps at the beginning that are no measure: kernels are compiled and caches are filled."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Statistics of the gaps between the steps of an attempt.

    Args:
        median_s: Median of the newest, 0 without any.
        largest_s: The largest while training, after the first few; 0 without any.
        largest_evaluation_s: The largest in which the model was not in training mode.
    """

    count: int = 0
    median_s: float = 0.0
    largest_s: float = 0.0
    largest_evaluation_s: float = 0.0


@dataclass
class StepGaps:
    """Gaps between the steps of one attempt, as they come."""

    _gaps: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS))
    _count: int = 0
    _largest_s: float = 0.0
    _largest_evaluation_s: float = 0.0

    def __post_init__(self) -> None:
        self._median_s: float | None = None  # of the gaps, once somebody asked

    def add(self, gap_s: float, *, training: bool) -> None:
        """Note a gap, finite and not negative."""
        self._count += 1
        self._gaps.append(gap_s)
        self._median_s = None
        if not training:
            self._largest_evaluation_s = max(self._largest_evaluation_s, gap_s)
        elif self._count > WARM_UP:
            self._largest_s = max(self._largest_s, gap_s)

    def gaps(self) -> Gaps:
        if self._median_s is None:
            self._median_s = float(np.median(self._gaps)) if self._gaps else 0.0
        return Gaps(self._count, self._median_s, self._largest_s, self._largest_evaluation_s)


def known_seconds(seconds: float | None) -> float | None:
    """Return a number of seconds that a client gave, None where it can be none."""
    if seconds is None or not math.isfinite(seconds) or not 0.0 <= seconds <= 1e9:
        return None
    return seconds


SIGN_EVERY_S: Final = 4.0
"""Longest time between two signs of life in the log of a live rank without records."""

LOGGED_AFTER_S: Final = 5.0
"""A sign of life may be so much later than the last one that is in the log."""


@dataclass(frozen=True, slots=True)
class RankLiveness:
    """Known facts of one rank.

    Args:
        step: Its last step, -1 before the first.
        is_lost: Whether it went without BYE, and nobody has come in its place.
        has_failed: Whether it ended with an exception, and nobody has come in its place.
        behind_frames: Frames in a row that closed two steps or more ahead of it.
        stack: Python stack of its training thread in a hang that goes on, else empty.
    """

    rank: int
    step: int
    lives: bool
    is_lost: bool
    has_failed: bool
    silent_s: float
    idle_s: float
    behind_frames: int
    since_ns: int
    stack: str = ""


@dataclass(frozen=True, slots=True)
class Liveness:
    """Liveness of an attempt at one moment.

    Args:
        received_ns: The moment, nanoseconds since the epoch.
        step: That step, 0 before the first.
        idle_s: Seconds since its newest step, or since it began; None if no rank lives.
        evaluating: Whether a rank said since that step that its model is not in training mode.
    """

    received_ns: int
    place: Place
    step: int
    ranks: tuple[RankLiveness, ...]
    idle_s: float | None
    gaps: Gaps
    evaluating: bool
    is_over: bool


def _describe(session: RankSession, now_ns: int, *, from_files: bool) -> RankLiveness:
    """Return the liveness of a rank; none is lost whose records come from spill files."""
    lost = session.lost_ns > 0
    gone = not session.is_replaced and not from_files
    return RankLiveness(
        rank=session.hello.rank,
        step=session.last_step,
        lives=session.state is RankState.ALIVE and not (session.is_from_files or from_files),
        is_lost=lost and gone and session.state not in (RankState.ENDED, RankState.FAILED),
        has_failed=session.state is RankState.FAILED and gone,
        silent_s=max(0.0, (now_ns - session.heard_ns) / 1e9),
        idle_s=max(0.0, (now_ns - session.stepped_ns) / 1e9),
        behind_frames=session.behind_frames,
        since_ns=session.lost_ns or session.heard_ns,
        stack=session.hang_stack,
    )


@dataclass(slots=True)
class SignsOfLife:
    """Signs that an attempt trains. Times are nanoseconds since the epoch."""

    heard_ns: int
    resumed_ns: int
    stepped_ns: int
    is_evaluating: bool = False
    was_away: bool = False
    is_troubled: bool = False
    place: Place = NOWHERE
    _pace: StepGaps = field(default_factory=StepGaps)

    @classmethod
    def of(cls, started_ns: int) -> Self:
        """Return those of an attempt that has just begun."""
        return cls(started_ns, started_ns, started_ns)

    def resume(self, now_ns: int) -> None:
        """Note that the aggregator was away until now."""
        self.resumed_ns, self.was_away = now_ns, True

    def advance(self, place: Place, part: RankRecord, num_steps: int, now_ns: int) -> None:
        """Note a step that is newer than all before, and how long it took to come."""
        claimed = known_seconds(part.scalars.get(Scalar.STEP_TIME_S))
        claimed = None if claimed is None else known_seconds(claimed * max(num_steps, 1))
        seen = None if self.was_away else (now_ns - self.stepped_ns) / 1e9
        known = [gap for gap in (claimed, seen) if gap is not None]
        if known and self.place > NOWHERE:
            self._pace.add(max(known), training=not self.is_evaluating)
        self.place, self.stepped_ns = place, now_ns
        self.is_evaluating = self.was_away = False

    def gaps(self) -> Gaps:
        return self._pace.gaps()

    def liveness(
        self, sessions: Mapping[int, RankSession], now_ns: int, *, from_files: bool
    ) -> Liveness:
        """Return how alive the attempt is."""
        ranks = tuple(
            [_describe(sessions[rank], now_ns, from_files=from_files) for rank in sorted(sessions)]
        )
        return Liveness(
            received_ns=now_ns,
            place=self.place,
            step=max(self.place[1], 0),
            ranks=ranks,
            idle_s=min((rank.idle_s for rank in ranks if rank.lives), default=None),
            gaps=self.gaps(),
            evaluating=self.is_evaluating,
            is_over=all(session.state is RankState.ENDED for session in sessions.values()),
        )
