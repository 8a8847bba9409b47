"""Housekeeping: what the passing of time puts into the log."""

from __future__ import annotations

from typing import Final

from gradwatch_server.core.entries import Lost, Tick
from gradwatch_server.core.state import State
from gradwatch_server.engine.batch import Batch
from gradwatch_server.engine.published import PublishedState
from gradwatch_server.storage.retention import long_ended
from gradwatch_wire.health import RankState

TICK_NS: Final = 1_000_000_000
FORGET_NS: Final = 60_000_000_000
"""How often it is looked whether a run ended long ago."""


class Housekeeping:
    """Lets time pass for frames that wait, gives up silent sessions and lets old runs go."""

    def __init__(
        self,
        state: State,
        published: PublishedState,
        now_ns: int,
        *,
        session_timeout_s: float,
        runs_max_age_s: float,
    ) -> None:
        self._state = state
        self._published = published
        self._session_timeout_ns = int(session_timeout_s * 1e9)
        self._runs_max_age_s = runs_max_age_s
        self._ticked_ns = self._forgot_ns = now_ns

    def add(self, now_ns: int, batch: Batch) -> None:
        """Add what is due to a batch; something is once a second."""
        if now_ns - self._ticked_ns < TICK_NS:
            return
        self._ticked_ns = now_ns
        for session in self._silent(now_ns):
            batch.add(now_ns, Lost(session))
        if any(run.current.waiting for run in self._state.runs.values()):
            batch.add(now_ns, Tick())
        self._add_forgotten(now_ns, batch)

    def _silent(self, now_ns: int) -> list[bytes]:
        """Return the sessions that gave no sign of life for the session timeout."""
        last_seen = self._published.last_seen
        return [
            session.id
            for session in self._state.sessions.values()
            if session.state is RankState.ALIVE
            and now_ns - last_seen.get(session.id, now_ns) > self._session_timeout_ns
        ]

    def _add_forgotten(self, now_ns: int, batch: Batch) -> None:
        if now_ns - self._forgot_ns < FORGET_NS:
            return
        self._forgot_ns = now_ns
        last_seen = self._published.last_seen
        for body in long_ended(self._state, last_seen, now_ns, self._runs_max_age_s):
            batch.add(now_ns, body)
