"""The ranks of one attempt: their sessions, which of them live, and which are behind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.session import RankSession
from gradwatch_wire.health import RankState

BEHIND_STEPS: Final = 2
"""A frame that is so far ahead of a rank counts as closed ahead of it."""


@dataclass
class Ranks:
    """Sessions of an attempt.

    Args:
        sessions: Rank to its session; `join` adds one.

    Attributes:
        alive: Ranks that have neither ended nor been lost.
        behind: Ranks that frames closed ahead of.
        bare: Ranks without layers.
        awaited: Living ranks that have some.
    """

    sessions: dict[int, RankSession] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sessions = self.sessions.items()
        self.alive = {rank for rank, session in sessions if session.state is RankState.ALIVE}
        self.behind = {rank for rank, session in sessions if session.behind_frames}
        self.bare = {rank for rank, session in sessions if session.is_bare}
        self._await_ranks()

    def join(self, session: RankSession) -> None:
        self.sessions[session.hello.rank] = session

    def record_layers(self, session: RankSession, *, is_bare: bool) -> None:
        session.is_bare = is_bare
        (self.bare.add if is_bare else self.bare.discard)(session.hello.rank)
        self._await_ranks()

    def set_state(self, session: RankSession, state: RankState) -> None:
        """Note that a session ended, is lost, or is back."""
        session.state = state
        if state is RankState.ALIVE:
            self.alive.add(session.hello.rank)
        else:
            self.alive.discard(session.hello.rank)
        self._await_ranks()

    def _await_ranks(self) -> None:
        self.awaited = self.alive - self.bare if self.bare else self.alive

    def wait_anew(self, now_ns: int) -> None:
        """Count from now for those that live: nobody could reach the aggregator before."""
        for rank in self.alive:
            self.sessions[rank].wait_anew(now_ns)

    def count_behind(self, frame: Frame) -> None:
        """Count a closed frame for those that are well behind it."""
        if frame.coverage == 1.0:
            for rank in self.behind:
                self.sessions[rank].behind_frames = 0
            self.behind.clear()
            return
        for rank in self.awaited:
            session = self.sessions[rank]
            if session.last_step <= frame.step - BEHIND_STEPS:
                session.behind_frames += 1
                self.behind.add(rank)
            elif session.behind_frames:
                session.behind_frames = 0
                self.behind.discard(rank)
