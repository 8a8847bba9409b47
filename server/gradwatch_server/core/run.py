"""Runs: entries of one run's log in, alerts out. The same entries give the same alerts and ids."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

from gradwatch_server.budgets import LoggedBudgets
from gradwatch_server.core.alerting.alert import Acknowledgement, Alert
from gradwatch_server.core.alerting.alert_budget import AlertBudget
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.silences import Silences
from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.attempt_history import MAX_SHOWN, AttemptHistory
from gradwatch_server.core.entries import (
    Acknowledged,
    Beats,
    Began,
    BudgetsSet,
    Entry,
    Forgotten,
    FramesClosed,
    Gap,
    Lost,
    ManifestsDropped,
    Opened,
    Received,
    Resumed,
    RulesSet,
    SilenceAdded,
    SilenceRemoved,
    Tick,
)
from gradwatch_server.core.frames.closed_frame import FrameRecorder
from gradwatch_server.core.frames.frame import RecordColumns
from gradwatch_server.core.frames.window import WINDOW_STEPS
from gradwatch_server.core.losses import MAX_COUNT
from gradwatch_server.core.session import ATTEMPT_BYTES, EXCEPTION, RankSession, session_bytes
from gradwatch_wire import Bye, Envelope, Event, Gains, Hello, Manifest, Record, Stats
from gradwatch_wire.health import RankState
from gradwatch_wire.session.replayed import is_replayed


@dataclass
class Run(AttemptHistory):
    """A named run, derived from its log. It does no I/O and asks no clock.

    Args:
        position: Number of the newest entry of its log that it has.
        num_forgotten: Attempts that left memory: the next one has the number after them.
        rules_json: The rules in force, as JSON; empty for the defaults.
        budgets_json: The budgets in force, as JSON; empty for none.

    Attributes:
        touched: Numbers of attempts that entries changed, until somebody clears them. Attempts that
            are judged may change with time.
        is_relearnt: Whether its checkpoint could not be read, so that all is from its log.
    """

    name: str
    created_ns: int
    num_stored: int = 0
    num_lost: int = 0
    alert_budget: AlertBudget = field(default_factory=AlertBudget)
    position: int = 0
    num_forgotten: int = 0
    rules_json: str = ""
    budgets_json: str = ""
    silences: Silences = field(default_factory=Silences)

    def __post_init__(self) -> None:
        super().__init__()
        self.sessions: dict[bytes, RankSession] = {}
        self.sessions_bytes = 0
        self.touched: set[int] = set()
        self.window_steps = WINDOW_STEPS
        self.recorder: FrameRecorder | None = None
        self.is_relearnt = False
        self._set_rules(self.rules_json)
        self._set_budgets(self.budgets_json)

    def _set_rules(self, text: str) -> None:
        self.rules_json, self.rules = text, _rules(text)

    def _set_budgets(self, text: str) -> None:
        self.budgets_json = text
        self.budgets = self.alert_budget.limits = _budgets(text)
        self._open_limit = self.budgets.open_frames_bytes

    @property
    def has_due(self) -> bool:
        """Presence of frames that are due, and that the last entry left open."""
        return any(attempt.open.frames.has_due for attempt in self.judged)

    def open_records(self) -> Iterator[RecordColumns]:
        """Yield the records that wait for other ranks, and whose numbers the log keeps."""
        for attempt in self.judged:
            yield from attempt.open.records()

    def adopt(self, attempt: Attempt) -> None:
        attempt.active_alerts.allowance.budget = self.alert_budget
        attempt.active_alerts.silences = self.silences
        attempt.closed.recorder = self.recorder
        self.sessions.update((session.id, session) for session in attempt.sessions.values())
        self.sessions_bytes += attempt.sessions_bytes
        super().adopt(attempt)

    def record_with(self, recorder: FrameRecorder | None) -> None:
        """Hand every frame that closes from here on to a recorder."""
        self.recorder = recorder
        for attempt in self.attempts:
            attempt.closed.recorder = recorder

    def apply(self, entry: Entry) -> list[Alert]:
        """Apply an entry; return the alerts that fire, have news, or are resolved by it."""
        if type(entry.body) is Received:  # nearly always
            return self.receive(entry.body.envelope, entry.received_ns)
        return list(self._apply(entry))

    def _apply(self, entry: Entry) -> Iterator[Alert]:
        now_ns = entry.received_ns
        match entry.body:
            case Beats() as beats:
                yield from self._beat(beats, now_ns)
            case Tick():
                for attempt in self.judged:
                    yield from attempt.pass_time(now_ns, self.rules)
            case Resumed():
                for attempt in self.judged:
                    attempt.resume(now_ns)
            case Opened() | Gap() | Lost() as body:
                yield from self._change_session(body, now_ns)
            case Began() | RulesSet() | BudgetsSet() | SilenceAdded() | SilenceRemoved() as body:
                yield from self._put_in_force(body, now_ns)
            case Forgotten() | FramesClosed() | ManifestsDropped() | Acknowledged() as body:
                yield from self._change(body, now_ns)

    def _change(
        self, body: Forgotten | FramesClosed | ManifestsDropped | Acknowledged, now_ns: int
    ) -> Iterator[Alert]:
        match body:
            case Forgotten(_, attempts):
                self._forget(attempts)
            case FramesClosed(_, number, limit):
                for attempt in self.judged:
                    if attempt.number == number:
                        attempt.revision += 1
                        self.touched.add(number)
                        yield from attempt.keep_to(limit, "total_bytes", now_ns, self.rules)
            case ManifestsDropped(session_id, limit) if session_id in self.sessions:
                session = self.sessions[session_id]
                self._touched(session).manifests.keep_to(session, limit)
            case Acknowledged(_, number, alert_id, by, comment):
                who = Acknowledgement(by, comment, now_ns)
                self.touched.add(number)
                for attempt in self.attempts:
                    if attempt.number == number:
                        yield from attempt.active_alerts.acknowledge(alert_id, who)

    def _put_in_force(
        self, body: Began | RulesSet | BudgetsSet | SilenceAdded | SilenceRemoved, now_ns: int
    ) -> Iterator[Alert]:
        match body:
            case Began(attempts, rules, budgets, silences):
                self.num_forgotten = max(self.num_forgotten, attempts)
                self._set_rules(rules)
                self._set_budgets(budgets)
                self.silences.replace(silences)
            case RulesSet(rules):
                self._set_rules(rules)
            case BudgetsSet(budgets):
                self._set_budgets(budgets)
            case SilenceAdded(silence):
                self.silences.add(silence)
                self.touched.update(attempt.number for attempt in self.attempts)
                for attempt in self.attempts:
                    if attempt.active_alerts and not attempt.retired:
                        names = tuple(attempt.layers.names)
                        attempt.active_alerts.apply_silences(names, now_ns)
            case SilenceRemoved(silence_id):  # whom it kept is told at its next step
                self.silences.remove(silence_id)
        yield from ()

    def _change_session(self, body: Opened | Gap | Lost, now_ns: int) -> Iterator[Alert]:
        match body:
            case Opened(session_id, hello):
                yield from self._open(session_id, hello, now_ns)
            case Gap(session_id, first, last):
                yield from self._gap(session_id, first, last, now_ns)
            case Lost(session_id):
                session = self.sessions[session_id]
                yield from self._touched(session).leave(session, RankState.LOST, now_ns, self.rules)

    def _touched(self, session: RankSession) -> Attempt:
        """Return the attempt of a session, noting that both change."""
        attempt = self.attempt_of(session)
        attempt.revision += 1
        session.revision += 1
        self.touched.add(attempt.number)
        return attempt

    def _open(self, session_id: bytes, hello: Hello, now_ns: int) -> Iterator[Alert]:
        known = self.sessions.get(session_id)
        if known is not None:
            yield from self._return(known, hello, now_ns)
            return
        attempt = self.find(hello)
        if attempt is None:
            last = self.attempts[-1].number if self.attempts else self.num_forgotten
            attempt = Attempt.begin(self.name, last + 1, hello, now_ns, self.window_steps)
            yield from self.begin(attempt, now_ns, self.rules)
            self.sessions_bytes += ATTEMPT_BYTES
        self.touched.update(attempt.number for attempt in self.attempts[-MAX_SHOWN - 2 :])
        # The token is a secret: the log leaves it out, and so does the saved state.
        session = RankSession(session_id, replace(hello, token=""), attempt.number, now_ns)
        session.is_from_files = is_replayed(hello)
        attempt.revision += 1
        attempt.join(session)
        attempt.record_sign(session, now_ns)
        self.sessions[session_id] = session
        self.sessions_bytes += session_bytes(hello)
        yield from self.succeed(attempt, hello, now_ns, self.rules)

    def _return(self, session: RankSession, hello: Hello, now_ns: int) -> Iterator[Alert]:
        """Take up a session that was taken for lost, or that is sent from files now."""
        if session.state in (RankState.ENDED, RankState.FAILED):
            return  # what it is sent again is stored already
        attempt = self._touched(session)
        session.is_from_files = is_replayed(hello)
        session.last_ns = now_ns
        session.stepped_ns = max(session.stepped_ns, now_ns)
        attempt.set_state(session, RankState.ALIVE)
        attempt.record_sign(session, now_ns)
        if attempt.signs.is_troubled:
            yield from attempt.judge_liveness(now_ns, self.rules)

    def _beat(self, beats: Beats, now_ns: int) -> Iterator[Alert]:
        touched: dict[int, Attempt] = {}
        for progress in beats.progress:
            session = self.sessions.get(progress.session)
            if session is not None:
                attempt = self._touched(session)
                attempt.record_progress(session, progress, now_ns)
                touched[id(attempt)] = attempt
        for attempt in touched.values():
            yield from attempt.pass_time(now_ns, self.rules)

    def receive(self, envelope: Envelope, now_ns: int) -> list[Alert]:
        """Apply a record, the entry that nearly all are."""
        session = self.sessions[envelope.session]
        session.acked = envelope.seq
        session.num_stored += 1
        session.last_ns = now_ns
        self.num_stored += 1
        session.revision += 1
        attempt = self.attempts[-1]
        if attempt.number != session.attempt:  # hardly ever
            attempt = self.attempt_of(session)
        attempt.revision += 1
        if attempt.number not in self.touched:
            self.touched.add(attempt.number)
        if session.state is RankState.LOST:
            attempt.set_state(session, RankState.ALIVE)
        attempt.record_sign(session, now_ns)
        alerts: list[Alert] = []
        if type(envelope.record) is Stats:
            stats = envelope.record
            alerts += attempt.add_stats(session, stats, self.position, now_ns, self.rules)
        else:
            alerts += self._receive_other(attempt, session, envelope.record, now_ns)
        alerts += attempt.close_frames(now_ns, self.rules)
        limit = self._open_limit
        if len(self.attempts) > 1:
            limit -= sum(each.open.num_bytes for each in self.judged if each is not attempt)
        if attempt.open.num_bytes > limit:
            alerts += attempt.keep_to(limit, "run_bytes", now_ns, self.rules)
        return alerts

    def _receive_other(
        self, attempt: Attempt, session: RankSession, record: Record, now_ns: int
    ) -> Iterator[Alert]:
        match record:
            case Manifest():
                attempt.add_manifest(session, record, self.budgets.layers_bytes)
                self._keep_manifests(attempt, session)
            case Gains():
                attempt.add_gains(session, record, now_ns)
            case Event():
                attempt.add_event(session, record)
            case Bye(reason=reason, last_step=last_step):
                session.reason = reason
                session.last_step = max(session.last_step, last_step)
                state = RankState.FAILED if reason == EXCEPTION else RankState.ENDED
                yield from attempt.leave(session, state, now_ns, self.rules)

    def _keep_manifests(self, attempt: Attempt, session: RankSession) -> None:
        """Drop manifests until those of the run fit, the newest last."""
        while (
            sum(attempt.manifests.num_bytes for attempt in self.judged)
            > self.budgets.manifests_bytes
        ):
            if not any(
                attempt.manifests.drop_oldest(attempt.sessions.values()) for attempt in self.judged
            ):
                attempt.manifests.drop_newest(session)
                return

    def _gap(self, session_id: bytes, first: int, last: int, now_ns: int) -> Iterator[Alert]:
        session = self.sessions[session_id]
        session.acked = last
        count = last - first + 1
        session.num_lost = min(session.num_lost + count, MAX_COUNT)
        self.num_lost = min(self.num_lost + count, MAX_COUNT)
        yield from self._touched(session).add_loss(session, first, last, now_ns, self.rules)

    def _forget(self, attempts: int) -> None:
        for session in self.forget(attempts):
            del self.sessions[session.id]
        self.sessions_bytes = sum(attempt.sessions_bytes for attempt in self.attempts)
        self.num_forgotten = max(self.num_forgotten, attempts)


@lru_cache(maxsize=16)
def _rules(text: str) -> Rules:
    return Rules.model_validate_json(text) if text else Rules()


@lru_cache(maxsize=16)
def _budgets(text: str) -> LoggedBudgets:
    """Return budgets, one object for all runs that have the same."""
    if not text:
        return LoggedBudgets.unlimited()
    return LoggedBudgets.model_construct(**json.loads(text))
