"""The state: entries of the log in, alerts out. The same entries give the same alerts and ids."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.attempt import Attempt
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
from gradwatch_server.core.run import Run
from gradwatch_server.core.session import Session
from gradwatch_wire import Bye, Envelope, Event, Gains, Hello, Manifest, Stats
from gradwatch_wire.health import RankState

MAX_FORGOTTEN: Final = 10_000
"""Names of forgotten runs that are kept, so that an attempt's number, and with it the ids of its
alerts, is not used again."""


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
                return self._concerned(session)
            case Received(envelope):
                return self._concerned(envelope.session)
            case Tick():
                runs = self.runs.values()
                return [(run.name, run.current.number) for run in runs if run.current.waiting]
            case Forgotten(run, attempts) if run in self.runs:
                return [(run, attempts)]
        return []

    def _concerned(self, session_id: bytes) -> list[tuple[str, int]]:
        session = self.sessions.get(session_id)
        return [] if session is None else [(session.hello.run, session.attempt)]

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
                yield from self._lose(self.sessions[session], now_ns)
            case Tick():
                for run in self.runs.values():
                    if run.name not in skip:
                        yield from run.current.close_frames(now_ns, self.rules)
            case RulesSet(rules):
                self.rules = Rules.from_log(rules)
            case Forgotten(name, attempts):
                self._forget(self.runs[name], attempts)

    def _attempt(self, session: Session) -> Attempt:
        return self.runs[session.hello.run].attempt_of(session)

    def _lose(self, session: Session, now_ns: int) -> Iterator[Alert]:
        attempt = self._attempt(session)
        attempt.set_state(session, RankState.LOST)
        yield from attempt.close_frames(now_ns, self.rules)

    def _open(self, session_id: bytes, hello: Hello, now_ns: int) -> Iterator[Alert]:
        known = self.sessions.get(session_id)
        if known is not None:  # taken for lost, and back
            self._attempt(known).set_state(known, RankState.ALIVE)
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
        session = Session(session_id, hello, attempt.number, now_ns)
        attempt.join(session)
        self.sessions[session_id] = session

    def _receive(self, envelope: Envelope, now_ns: int) -> Iterator[Alert]:
        session = self.sessions[envelope.session]
        session.acked = envelope.seq
        session.num_stored += 1
        session.last_ns = now_ns
        self.runs[session.hello.run].num_stored += 1
        attempt = self._attempt(session)
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
        yield from self._attempt(session).add_loss(session, first, last, now_ns, self.rules)

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
