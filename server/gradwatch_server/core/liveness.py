"""Liveness: how long nothing was heard of ranks, how long no step came, and which ranks went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gradwatch_server.core.frames.step_order import Place
from gradwatch_server.core.pace import Gaps
from gradwatch_server.core.session import Session
from gradwatch_wire.health import RankState

SIGN_EVERY_S: Final = 4.0
"""How often the log has a sign of life at least of a rank that lives and sends no records."""

LOGGED_AFTER_S: Final = 5.0
"""A sign of life may be so much later than the last one that is in the log."""


@dataclass(frozen=True, slots=True)
class RankLiveness:
    """Known facts of one rank.

    Args:
        rank: Global rank.
        step: Its last step, -1 before the first.
        lives: Whether it is expected to give signs of life.
        is_lost: Whether it went without BYE, and nobody has come in its place.
        has_failed: Whether it ended with an exception, and nobody has come in its place.
        silent_s: Seconds since its last sign of life in the log.
        idle_s: Seconds since its last step, or since it attached.
        behind_frames: Frames in a row that closed two steps or more ahead of it.
        since_ns: When it last gave a sign of life, or went.
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


@dataclass(frozen=True, slots=True)
class Liveness:
    """Liveness of an attempt at one moment.

    Args:
        received_ns: The moment, nanoseconds since the epoch.
        place: Position of its newest step.
        step: That step, 0 before the first.
        ranks: What is known of each rank that attached, by rank.
        idle_s: Seconds since its newest step, or since it began; None if no rank lives.
        gaps: The gaps between its steps so far.
        evaluating: Whether a rank said since that step that its model is not in training mode.
        is_over: Whether all of its ranks said BYE.
    """

    received_ns: int
    place: Place
    step: int
    ranks: tuple[RankLiveness, ...]
    idle_s: float | None
    gaps: Gaps
    evaluating: bool
    is_over: bool


def look(sessions: Iterable[Session], now_ns: int, *, from_files: bool) -> list[RankLiveness]:
    """Return what is known of the ranks of an attempt.

    Args:
        sessions: Their sessions.
        now_ns: The time it is.
        from_files: Whether they are sent from spill files: then none is ever lost.
    """
    return [_look_at(session, now_ns, from_files) for session in sessions]


def _look_at(session: Session, now_ns: int, from_files: bool) -> RankLiveness:
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
    )
