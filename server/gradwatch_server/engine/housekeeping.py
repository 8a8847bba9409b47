"""Housekeeping: what the passing of time puts into the log, and what BEATs said meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gradwatch_server.core.entries import BeatProgress, Beats, Forgotten, Lost, Resumed, Tick
from gradwatch_server.core.liveness import LOGGED_AFTER_S, SIGN_EVERY_S
from gradwatch_server.core.session import RankSession
from gradwatch_server.core.state import State
from gradwatch_server.engine.batch import Batch
from gradwatch_server.engine.publishing import PublishedState
from gradwatch_server.storage.retention import long_ended
from gradwatch_wire.health import RankState
from gradwatch_wire.session.timing import BEAT_EVERY_S

TICK_NS: Final = 1_000_000_000
WATCH_NS: Final = 5_000_000_000
"""Nanoseconds between ticks in the log of a run with a live rank that is not heard of."""

FRESH_NS: Final = round(BEAT_EVERY_S * 1e9) + TICK_NS
"""A BEAT that is older says nothing of now: a rank that lives would have sent the next one."""

AWAY_NS: Final = 3_000_000_000
"""The engine was held up if it looked at nothing this long; a round takes some 50 ms."""

FORGET_NS: Final = 60_000_000_000
"""Nanoseconds between checks for runs that ended long ago."""


MAX_TICKS: Final = 64
"""Runs in which time passes in one round, at most: each may close some frames."""

MAX_FOLD_S: Final = 0.02
"""Time of a round's entries after which time passes in half as many runs in the next round."""


class Housekeeping:
    """Lets time pass for frames that wait, gives up silent sessions and lets old runs go.

    Attributes:
        to_tick: Runs in which time is to pass with the next rounds.
    """

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
        self._ticked_ns = self._forgot_ns = self._watched_ns = self._awake_ns = now_ns
        self._num_ticks = MAX_TICKS
        self._beats: dict[bytes, BeatProgress] = {}  # what each session said last
        self.to_tick: dict[str, None] = {}

    @property
    def due_ns(self) -> int:
        """Time of the next look at sessions and runs, nanoseconds since the epoch."""
        return self._ticked_ns + TICK_NS

    def wake(self, now_ns: int, batch: Batch) -> None:
        """Note that the engine works, and in the log if it had not for a while.

        Nobody could reach it then: no rank is late or silent for that.
        """
        away_ns, self._awake_ns = now_ns - self._awake_ns, now_ns
        if away_ns <= AWAY_NS:
            return
        for name, run in self._state.runs.items():
            if run.is_expected:
                batch.add(name, now_ns, Resumed())
        for session in self._state.sessions.values():
            if session.state is RankState.ALIVE:
                self._published.last_seen[session.id] = now_ns

    def hurry(self, run: str) -> None:
        """Let time pass in a run with the next round: frames of it are due."""
        self.to_tick[run] = None

    def pace(self, fold_s: float) -> None:
        """Adapt the runs in which time passes in the next round to what this one took."""
        if fold_s > MAX_FOLD_S:
            self._num_ticks = max(1, self._num_ticks // 2)
        else:
            self._num_ticks = min(MAX_TICKS, self._num_ticks + 1)

    def _add_ticks(self, now_ns: int, batch: Batch) -> None:
        for name in list(self.to_tick)[: self._num_ticks]:
            del self.to_tick[name]
            batch.add(name, now_ns, Tick())

    def beat(self, progress: BeatProgress) -> None:
        """Take in what a BEAT said; it gets into the log if nothing else shows that it lives."""
        self._beats[progress.session] = progress

    def add(self, now_ns: int, batch: Batch) -> bool:
        """Add what is due to a batch; return whether anything was, which it is once a second."""
        if now_ns < self.due_ns:
            if self.to_tick:
                self._add_ticks(now_ns, batch)
            return False
        self._ticked_ns = now_ns
        gone = _forgotten(batch)
        for session in self._silent(now_ns):
            if session.attempt > gone.get(session.hello.run, 0):
                batch.add(session.hello.run, now_ns, Lost(session.id))
        self._add_beats(now_ns, batch)
        self.to_tick |= self._watching(now_ns)
        self._add_ticks(now_ns, batch)
        self._add_forgotten(now_ns, batch, gone)
        return True

    def _add_beats(self, now_ns: int, batch: Batch) -> None:
        """Put what was said by sessions that sent nothing else lately into one entry of each run.

        The entry has the time at which it is made. So the last BEAT of a rank that is gone by then
        is left out, or it would seem to have lived until now.
        """
        due: dict[str, list[BeatProgress]] = {}
        sessions, last_seen = self._state.sessions, self._published.last_seen
        for session_id in list(self._beats):
            session = sessions.get(session_id)
            age_ns = now_ns - last_seen.get(session_id, now_ns)
            if session is None or session.state is not RankState.ALIVE or age_ns > FRESH_NS:
                del self._beats[session_id]
            elif now_ns - session.heard_ns >= SIGN_EVERY_S * 1e9:
                due.setdefault(session.hello.run, []).append(self._beats.pop(session_id))
        for name, progress in due.items():
            batch.add(name, now_ns, Beats(tuple(progress)))

    def _watching(self, now_ns: int) -> dict[str, None]:
        """Return runs in which time is to pass: a frame waits, or a live rank is not heard of."""
        runs = self._state.runs.items()
        watching = {
            name: None for name, run in runs if any(attempt.waiting for attempt in run.judged)
        }
        if now_ns - self._watched_ns < WATCH_NS:
            return watching
        self._watched_ns = now_ns
        silent_ns = now_ns - round(LOGGED_AFTER_S * 1e9)
        for session in self._state.sessions.values():
            if session.state is RankState.ALIVE and session.heard_ns < silent_ns:
                watching[session.hello.run] = None
        return watching

    def _silent(self, now_ns: int) -> list[RankSession]:
        """Return the sessions that gave no sign of life for the session timeout."""
        last_seen = self._published.last_seen
        return [
            session
            for session in self._state.sessions.values()
            if session.state is RankState.ALIVE
            and now_ns - last_seen.get(session.id, now_ns) > self._session_timeout_ns
        ]

    def _add_forgotten(self, now_ns: int, batch: Batch, gone: Mapping[str, int]) -> None:
        if now_ns - self._forgot_ns < FORGET_NS:
            return
        self._forgot_ns = now_ns
        last_seen = self._published.last_seen
        for body in long_ended(self._state, last_seen, now_ns, self._runs_max_age_s):
            if body.run not in gone:
                batch.add(body.run, now_ns, body)


def _forgotten(batch: Batch) -> dict[str, int]:
    """Return the runs of which something leaves memory in a batch, and up to which attempt."""
    bodies = (line.entry.body for line in batch.lines)
    return {body.run: body.attempts for body in bodies if isinstance(body, Forgotten)}
