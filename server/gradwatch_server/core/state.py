"""The state: entries of the log in, alerts out. The same entries give the same alerts and ids."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

from gradwatch_server.budgets import LoggedBudgets
from gradwatch_server.core.alerting.alert import Acknowledgement, Alert
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.silences import Silences
from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.entries import (
    Acknowledged,
    Beats,
    BudgetsSet,
    Entry,
    Forgotten,
    FramesClosed,
    Gap,
    Lost,
    ManifestsDropped,
    Opened,
    Received,
    Request,
    Resumed,
    RulesSet,
    SilenceAdded,
    SilenceRemoved,
    Tick,
)
from gradwatch_server.core.frames.closed_frame import FrameRecorder
from gradwatch_server.core.frames.window import WINDOW_STEPS
from gradwatch_server.core.losses import MAX_COUNT
from gradwatch_server.core.run import Run
from gradwatch_server.core.session import EXCEPTION, Session
from gradwatch_wire import Bye, Envelope, Event, Gains, Hello, Manifest, Stats
from gradwatch_wire.health import RankState
from gradwatch_wire.session.replayed import is_replayed

MAX_FORGOTTEN: Final = 10_000
"""Names of forgotten runs that are kept, so that an attempt's number, and with it the ids of its
alerts, is not used again."""


class State:
    """All runs, derived from the log. It does no I/O and asks no clock."""

    def __init__(self, window_steps: int = WINDOW_STEPS, rules: Rules | None = None) -> None:
        self.runs: dict[str, Run] = {}
        self.sessions: dict[bytes, Session] = {}
        self.rules = rules or Rules()
        self.budgets = LoggedBudgets.unlimited()
        self.silences = Silences()
        self.forgotten: dict[str, int] = {}  # run -> its last attempt
        self.window_steps = window_steps
        self.recorder: FrameRecorder | None = None

    def apply(self, entry: Entry, skip: Collection[str] = ()) -> list[Alert]:
        """Apply one entry; return the alerts that fire or are resolved by it, in order.

        Args:
            entry: The entry.
            skip: Runs that are ahead of it already, so that no time passes for them.
        """
        body = entry.body
        if isinstance(body, Acknowledged | SilenceAdded | SilenceRemoved):
            return list(self._follow(body, entry.received_ns, skip))
        return list(self._apply(entry, skip))

    def record_with(self, recorder: FrameRecorder) -> None:
        """Hand every frame that closes from here on to what keeps the history."""
        self.recorder = recorder
        for run in self.runs.values():
            for attempt in run.attempts:
                attempt.closed.recorder = recorder

    def concerns(self, entry: Entry) -> list[tuple[str, int]]:
        """Return `(run, attempt)` of what the entry is about to change; attempt 0 if it is new."""
        match entry.body:
            case Opened(session, hello) if session not in self.sessions:
                run = self.runs.get(hello.run)
                return [(hello.run, own) for own in (0, *(run.touched_by_open() if run else ()))]
            case (
                Opened(session, _)
                | Gap(session, _, _)
                | Lost(session)
                | ManifestsDropped(session, _)
            ):
                return self._concerned(session)
            case Received(envelope):
                return self._concerned(envelope.session)
            case Beats(progress):
                return list(
                    {pair: None for own in progress for pair in self._concerned(own.session)}
                )
            case Tick() | Resumed():
                is_resumed = isinstance(entry.body, Resumed)
                return [
                    (run.name, own.number)
                    for run in self.runs.values()
                    for own in run.judged
                    if own.lives or own.waiting or (is_resumed and own.may_return)
                ]
            case Forgotten(run, attempts) if run in self.runs:
                return [(run, attempts)]
            case Acknowledged(run, attempt) | FramesClosed(run, attempt) if run in self.runs:
                return [(run, attempt)]
            case SilenceAdded() | SilenceRemoved():
                return [(own.run, own.number) for own in self._alerting()]
        return []

    def keep_to(self, budgets: LoggedBudgets) -> None:
        """Put budgets in force."""
        self.budgets = budgets
        for run in self.runs.values():
            run.alert_budget.limits = budgets

    def _concerned(self, session_id: bytes) -> list[tuple[str, int]]:
        session = self.sessions.get(session_id)
        return [] if session is None else [(session.hello.run, session.attempt)]

    def _apply(self, entry: Entry, skip: Collection[str]) -> Iterator[Alert]:
        now_ns = entry.received_ns
        match entry.body:
            case Received(envelope):
                yield from self._receive(envelope, now_ns)
            case Beats() as beats:
                yield from self._beat(beats, now_ns, skip)
            case Tick():
                for attempt in self._judged(skip):
                    yield from attempt.pass_time(now_ns, self.rules)
            case Resumed():
                for attempt in self._judged(skip):
                    attempt.resume(now_ns)
            case RulesSet() | BudgetsSet() as body:
                self._put_in_force(body)
            case Forgotten() | FramesClosed() | ManifestsDropped() as body:
                yield from self._change_runs(body, now_ns)
            case Opened() | Gap() | Lost() as body:
                yield from self._change_session(body, now_ns)

    def _change_runs(
        self, body: Forgotten | FramesClosed | ManifestsDropped, now_ns: int
    ) -> Iterator[Alert]:
        match body:
            case Forgotten(name, attempts):
                self._forget(self.runs[name], attempts)
            case FramesClosed(name, number, most_bytes) if name in self.runs:
                for attempt in self.runs[name].judged:
                    if attempt.number == number:
                        attempt.revision += 1
                        budget = "open_frames_bytes"
                        yield from attempt.keep_to(most_bytes, budget, now_ns, self.rules)
            case ManifestsDropped(session_id, most_bytes) if session_id in self.sessions:
                session = self.sessions[session_id]
                self._touched(session).manifests.keep_to(session, most_bytes, "manifests_bytes")

    def _put_in_force(self, body: RulesSet | BudgetsSet) -> None:
        match body:
            case RulesSet(rules):
                self.rules = Rules.model_validate(rules)
            case BudgetsSet(budgets):
                self.keep_to(LoggedBudgets.model_construct(**budgets))

    def _change_session(self, body: Opened | Gap | Lost, now_ns: int) -> Iterator[Alert]:
        match body:
            case Opened(session, hello):
                yield from self._open(session, hello, now_ns)
            case Gap(session, first, last):
                yield from self._gap(session, first, last, now_ns)
            case Lost(session):
                yield from self._lose(self.sessions[session], now_ns)

    def _judged(self, skip: Collection[str]) -> list[Attempt]:
        runs = (run for run in self.runs.values() if run.name not in skip)
        return [attempt for run in runs for attempt in run.judged]

    def _follow(self, request: Request, now_ns: int, skip: Collection[str]) -> Iterator[Alert]:
        match request:
            case Acknowledged(run, number, alert_id, by, comment) if run in self.runs:
                who = Acknowledgement(by, comment, now_ns)
                for attempt in self.runs[run].attempts:
                    if attempt.number == number:
                        yield from attempt.active_alerts.acknowledge(alert_id, who)
            case SilenceAdded(silence):
                self.silences.add(silence)
                for attempt in self._alerting():
                    if attempt.run not in skip:
                        names = tuple(attempt.layers.names)
                        attempt.active_alerts.look_for_silences(names, now_ns)
            case SilenceRemoved(silence_id):  # whom it kept is told at its next step
                self.silences.remove(silence_id)

    def _alerting(self) -> list[Attempt]:
        """Return the attempts that have alerts which may still be told of."""
        return [
            attempt
            for run in self.runs.values()
            for attempt in run.attempts
            if attempt.active_alerts and not attempt.retired
        ]

    def _attempt(self, session: Session) -> Attempt:
        return self.runs[session.hello.run].attempt_of(session)

    def _lose(self, session: Session, now_ns: int) -> Iterator[Alert]:
        yield from self._touched(session).leave(session, RankState.LOST, now_ns, self.rules)

    def _touched(self, session: Session) -> Attempt:
        """Return the attempt of a session, noting that both change."""
        attempt = self._attempt(session)
        attempt.revision += 1
        session.revision += 1
        return attempt

    def _open(self, session_id: bytes, hello: Hello, now_ns: int) -> Iterator[Alert]:
        known = self.sessions.get(session_id)
        if known is not None:
            yield from self._return(known, hello, now_ns)
            return
        run = self.runs.get(hello.run)
        if run is None:
            run = self.runs[hello.run] = Run(hello.run, now_ns)
            run.alert_budget.limits = self.budgets
        attempt = run.find(hello)
        if attempt is None:
            last = run.attempts[-1].number if run.attempts else self.forgotten.get(run.name, 0)
            attempt = Attempt.begin(run.name, last + 1, hello, now_ns, self.window_steps)
            attempt.active_alerts.silences = self.silences
            attempt.closed.recorder = self.recorder
            yield from run.begin(attempt, now_ns, self.rules)
        # The token is a secret: the log leaves it out, and so does the saved state.
        session = Session(session_id, replace(hello, token=""), attempt.number, now_ns)
        session.is_from_files = is_replayed(hello)
        attempt.revision += 1
        attempt.join(session)
        attempt.note_sign(session, now_ns)
        self.sessions[session_id] = session
        yield from run.succeed(attempt, hello, now_ns, self.rules)

    def _return(self, session: Session, hello: Hello, now_ns: int) -> Iterator[Alert]:
        """Take up a session that was taken for lost, or that is sent from files now."""
        if session.state in (RankState.ENDED, RankState.FAILED):
            return  # what it is sent again is stored already
        attempt = self._touched(session)
        session.is_from_files = is_replayed(hello)
        session.last_ns = now_ns
        session.stepped_ns = max(session.stepped_ns, now_ns)
        attempt.set_state(session, RankState.ALIVE)
        attempt.note_sign(session, now_ns)
        if attempt.signs.is_troubled:
            yield from attempt.judge_liveness(now_ns, self.rules)

    def _beat(self, beats: Beats, now_ns: int, skip: Collection[str]) -> Iterator[Alert]:
        touched: dict[int, Attempt] = {}
        for progress in beats.progress:
            session = self.sessions.get(progress.session)
            if session is not None and session.hello.run not in skip:
                attempt = self._touched(session)
                attempt.note_progress(session, progress, now_ns)
                touched[id(attempt)] = attempt
        for attempt in touched.values():
            yield from attempt.pass_time(now_ns, self.rules)

    def _receive(self, envelope: Envelope, now_ns: int) -> Iterator[Alert]:
        session = self.sessions[envelope.session]
        session.acked = envelope.seq
        session.num_stored += 1
        session.last_ns = now_ns
        self.runs[session.hello.run].num_stored += 1
        attempt = self._touched(session)
        if session.state is RankState.LOST:
            attempt.set_state(session, RankState.ALIVE)
        attempt.note_sign(session, now_ns)
        match envelope.record:
            case Stats() as stats:
                yield from attempt.add_stats(session, stats, now_ns, self.rules)
            case Manifest() as manifest:
                attempt.add_manifest(session, manifest, self.budgets)
            case Gains() as gains:
                attempt.add_gains(session, gains, now_ns)
            case Event() as event:
                attempt.add_event(session, event)
            case Bye(reason=reason):
                session.reason = reason
                state = RankState.FAILED if reason == EXCEPTION else RankState.ENDED
                yield from attempt.leave(session, state, now_ns, self.rules)
        yield from attempt.close_frames(now_ns, self.rules)
        share = self.budgets.open_frames_bytes_per_attempt
        if attempt.open.num_bytes > share:
            budget = "open_frames_bytes_per_attempt"
            yield from attempt.keep_to(share * attempt.shares, budget, now_ns, self.rules)

    def _gap(self, session_id: bytes, first: int, last: int, now_ns: int) -> Iterator[Alert]:
        session = self.sessions[session_id]
        session.acked = last
        run, count = self.runs[session.hello.run], last - first + 1
        session.num_lost = min(session.num_lost + count, MAX_COUNT)
        run.num_lost = min(run.num_lost + count, MAX_COUNT)
        yield from self._touched(session).add_loss(session, first, last, now_ns, self.rules)

    def _forget(self, run: Run, attempts: int) -> None:
        for session in run.forget(attempts):
            del self.sessions[session.id]
        if run.attempts:
            return
        del self.runs[run.name]
        self.forgotten.pop(run.name, None)
        self.forgotten[run.name] = attempts
        if len(self.forgotten) > MAX_FORGOTTEN:
            del self.forgotten[next(iter(self.forgotten))]
