"""The fold: entries of the log in, alerts out. The same entries give the same alerts and ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gradwatch_server.core.alerts import Alert
from gradwatch_server.core.attempts import Attempt, Session
from gradwatch_server.core.entries import Entry, Gap, Lost, Opened, Received, RulesSet, Tick
from gradwatch_server.core.rules import Rules
from gradwatch_server.core.windows import WINDOW_STEPS
from gradwatch_wire import Bye, Envelope, Event, Gains, Hello, Manifest, Stats
from gradwatch_wire.health import RankState


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
        return self.attempts[-1]


class State:
    """All runs, derived from the log. It does no I/O and asks no clock."""

    def __init__(self, window_steps: int = WINDOW_STEPS, rules: Rules | None = None) -> None:
        self.runs: dict[str, Run] = {}
        self.sessions: dict[bytes, Session] = {}
        self.rules = rules or Rules()
        self._window_steps = window_steps

    def apply(self, entry: Entry) -> list[Alert]:
        """Apply one entry; return the alerts that fire or are resolved by it, in order."""
        return list(self._apply(entry))

    def _apply(self, entry: Entry) -> Iterator[Alert]:
        now_ns = entry.received_ns
        match entry.body:
            case Received(envelope):
                yield from self._receive(envelope, now_ns)
            case Opened(session, hello):
                yield from self._open(session, hello, now_ns)
            case Gap(session, first, last):
                self._gap(session, first, last)
            case Lost(session):
                lost = self.sessions[session]
                lost.attempt.set_state(lost, RankState.LOST)
                yield from lost.attempt.close_frames(now_ns, self.rules)
            case Tick():
                for run in self.runs.values():
                    yield from run.current.close_frames(now_ns, self.rules)
            case RulesSet(rules):
                self.rules = Rules.model_validate(rules)

    def _open(self, session_id: bytes, hello: Hello, now_ns: int) -> Iterator[Alert]:
        known = self.sessions.get(session_id)
        if known is not None:  # taken for lost, and back
            known.attempt.set_state(known, RankState.ALIVE)
            known.last_ns = now_ns
            return
        run = self.runs.get(hello.run)
        if run is None:
            run = self.runs[hello.run] = Run(hello.run, now_ns)
        if not run.attempts or run.current.is_another(hello):
            if run.attempts:
                yield from run.current.retire(now_ns, self.rules)
            number = len(run.attempts) + 1
            run.attempts.append(Attempt(run.name, number, hello, now_ns, self._window_steps))
        session = Session(session_id, hello, run.current, now_ns)
        run.current.join(session)
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

    def _gap(self, session_id: bytes, first: int, last: int) -> None:
        session = self.sessions[session_id]
        session.acked = last
        session.num_lost += last - first + 1
        self.runs[session.hello.run].num_lost += last - first + 1
