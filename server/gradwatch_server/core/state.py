"""The fold: entries of the log in, alerts out. The same entries give the same alerts and ids."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.attempts import Attempt, Session
from gradwatch_server.core.entries import (
    Entry,
    Forgotten,
    Gap,
    Lost,
    Opened,
    Received,
    RulesSet,
    Tick,
)
from gradwatch_server.core.frames.window import WINDOW_STEPS
from gradwatch_wire import Bye, Envelope, Event, Gains, Hello, Manifest, Stats
from gradwatch_wire.health import RankState
from gradwatch_wire.session.replayed import is_replayed

MAX_FORGOTTEN: Final = 10_000
"""Names of forgotten runs that are kept, so that an attempt's number, and with it the ids of its
alerts, is not used again."""


@dataclass(slots=True)
class Run:
    """A named run: its attempts, the last of which is current, and its totals."""

    name: str
    created_ns: int
    attempts: list[Attempt] = field(default_factory=list)
    num_stored: int = 0
    num_lost: int = 0

    @property
    def current(self) -> Attempt:
        """The newest attempt."""
        # What comes from a spill file is of the past: the training that runs stays current.
        return next((own for own in reversed(self.attempts) if not own.replayed), self.attempts[-1])

    def find(self, hello: Hello) -> Attempt | None:
        """Return the attempt that a new session belongs to, None if that is another one."""
        if not self.attempts:
            return None
        candidates = reversed(self.attempts) if is_replayed(hello) else [self.current]
        return next((own for own in candidates if not own.is_another(hello)), None)


class State:
    """All runs, derived from the log. It does no I/O and asks no clock."""

    def __init__(self, window_steps: int = WINDOW_STEPS, rules: Rules | None = None) -> None:
        self.runs: dict[str, Run] = {}
        self.sessions: dict[bytes, Session] = {}
        self.rules = rules or Rules()
        self.forgotten: dict[str, int] = {}  # run -> its last attempt
        self.window_steps = window_steps

    def apply(self, entry: Entry, skip: Collection[str] = ()) -> list[Alert]:
        """Apply one entry; return the alerts that fire or are resolved by it, in order.

        Args:
            entry: The entry.
            skip: Runs that are ahead of it already, so that no time passes for them.
        """
        return list(self._apply(entry, skip))

    def concerns(self, entry: Entry) -> list[tuple[str, int]]:
        """Return `(run, attempt)` of what the entry is about to change; attempt 0 if it is new."""
        match entry.body:
            case Opened(session, hello) if session not in self.sessions:
                return [(hello.run, 0)]
            case Opened(session, _) | Gap(session, _, _) | Lost(session):
                return self._attempt_of(session)
            case Received(envelope):
                return self._attempt_of(envelope.session)
            case Tick():
                runs = self.runs.values()
                return [(run.name, run.current.number) for run in runs if run.current.waiting]
            case Forgotten(run, attempts) if run in self.runs:
                return [(run, attempts)]
        return []

    def _attempt_of(self, session_id: bytes) -> list[tuple[str, int]]:
        session = self.sessions.get(session_id)
        return [] if session is None else [(session.hello.run, session.attempt.number)]

    def _apply(self, entry: Entry, skip: Collection[str]) -> Iterator[Alert]:
        now_ns = entry.received_ns
        match entry.body:
            case Received(envelope):
                yield from self._receive(envelope, now_ns)
            case Opened(session, hello):
                yield from self._open(session, hello, now_ns)
            case Gap(session, first, last):
                yield from self._gap(session, first, last, now_ns)
            case Lost(session):
                lost = self.sessions[session]
                lost.attempt.set_state(lost, RankState.LOST)
                yield from lost.attempt.close_frames(now_ns, self.rules)
            case Tick():
                for run in self.runs.values():
                    if run.name not in skip:
                        yield from run.current.close_frames(now_ns, self.rules)
            case RulesSet(rules):
                self.rules = Rules.model_validate(rules)
            case Forgotten(name, attempts):
                self._forget(self.runs[name], attempts)

    def _open(self, session_id: bytes, hello: Hello, now_ns: int) -> Iterator[Alert]:
        known = self.sessions.get(session_id)
        if known is not None:  # taken for lost, and back
            known.attempt.set_state(known, RankState.ALIVE)
            known.last_ns = now_ns
            return
        run = self.runs.get(hello.run)
        if run is None:
            run = self.runs[hello.run] = Run(hello.run, now_ns)
        attempt = run.find(hello)
        if attempt is None:
            last = run.attempts[-1].number if run.attempts else self.forgotten.get(run.name, 0)
            attempt = Attempt(run.name, last + 1, hello, now_ns, self.window_steps)
            if run.attempts:
                past = attempt.replayed and not run.current.replayed
                yield from (attempt if past else run.current).retire(now_ns, self.rules)
            run.attempts.append(attempt)
        session = Session(session_id, hello, attempt, now_ns)
        attempt.join(session)
        self.sessions[session_id] = session

    def _receive(self, envelope: Envelope, now_ns: int) -> Iterator[Alert]:
        session = self.sessions[envelope.session]
        session.acked = envelope.seq
        session.num_stored += 1
        session.last_ns = now_ns
        self.runs[session.hello.run].num_stored += 1
        attempt = session.attempt
        if session.state is RankState.LOST:
            attempt.set_state(session, RankState.ALIVE)
        match envelope.record:
            case Stats() as stats:
                attempt.add_stats(session, stats, now_ns)
            case Manifest() as manifest:
                attempt.add_manifest(session, manifest)
            case Gains() as gains:
                attempt.add_gains(session, gains, now_ns)
            case Event() as event:
                attempt.add_event(session, event)
            case Bye(reason=reason):
                session.reason = reason
                attempt.set_state(session, RankState.ENDED)
        yield from attempt.close_frames(now_ns, self.rules)

    def _gap(self, session_id: bytes, first: int, last: int, now_ns: int) -> Iterator[Alert]:
        session = self.sessions[session_id]
        session.acked = last
        session.num_lost += last - first + 1
        self.runs[session.hello.run].num_lost += last - first + 1
        yield from session.attempt.add_loss(session, first, last, now_ns, self.rules)

    def _forget(self, run: Run, attempts: int) -> None:
        for attempt in run.attempts:
            if attempt.number <= attempts:
                for session in attempt.sessions.values():
                    del self.sessions[session.id]
        run.attempts = [attempt for attempt in run.attempts if attempt.number > attempts]
        if run.attempts:
            return
        del self.runs[run.name]
        self.forgotten.pop(run.name, None)
        self.forgotten[run.name] = attempts
        if len(self.forgotten) > MAX_FORGOTTEN:
            del self.forgotten[next(iter(self.forgotten))]
