"""The engine: one thread that owns the log and the state.

Each round: drain a batch, judge it, append, commit, acknowledge, apply, store the alerts, and
publish immutable snapshots for the readers.
"""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from gradwatch_server.clock import catch_up, now_ns
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules import Rules
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
from gradwatch_server.core.sequence import Outcome, SequenceTracker
from gradwatch_server.core.views.snapshot import RunView, view_run
from gradwatch_server.engine.metrics import EngineMetrics
from gradwatch_server.errors import GradwatchError
from gradwatch_server.ingest.socket import Ingest, Message
from gradwatch_server.storage.checkpointer import Checkpointer
from gradwatch_server.storage.retention import RetentionPolicy, long_ended
from gradwatch_server.storage.sqlite.log import RECORD_KINDS, Line, Log
from gradwatch_wire import Ack, Beat, Hello, Refuse, Welcome
from gradwatch_wire import Alert as AlertRecord
from gradwatch_wire.health import RUN_NAME_RULE, AlertState, RankState, is_run_name
from gradwatch_wire.jsonable import jsonable
from gradwatch_wire.limits import BOOT_ID_BYTES

logger = logging.getLogger(__name__)

POLL_MS: Final = 50
TICK_NS: Final = 1_000_000_000
PUBLISH_NS: Final = 50_000_000
"""Snapshots are made at most this often: readers cannot tell, and a busy run has a step each ms."""

RETRY_S: Final = 0.5
FORGET_NS: Final = 60_000_000_000
"""How often it is looked whether a run ended long ago."""

MAX_HELLO_BYTES: Final = 8_192
"""A session's HELLO stays in memory for good; those of our client take some 300 bytes."""

MAX_SESSIONS: Final = 100_000
MAX_RUNS: Final = 1_000


@dataclass(slots=True)
class Answer:
    """What a session is to be told once its batch is committed."""

    peer: bytes
    welcome: bool = False
    rewind: bool = False


@dataclass(slots=True)
class PublishedState:
    """What the engine shows to other threads. Each attribute is replaced, never changed."""

    runs: Mapping[str, RunView] = field(default_factory=lambda: MappingProxyType({}))
    heard: dict[bytes, int] = field(default_factory=dict)
    fault: str | None = None
    cursor: int = 0
    num_duplicates: int = 0
    num_apply_errors: int = 0


class Engine(threading.Thread):
    """Runs until `stop`. *on_alerts* is called from this thread after alerts were stored."""

    def __init__(
        self,
        log: Log,
        ingest: Ingest,
        rules: Rules,
        *,
        window_steps: int,
        session_timeout_s: float,
        on_alerts: Callable[[], None],
        on_failure: Callable[[], None],
        keeping: RetentionPolicy | None = None,
    ) -> None:
        super().__init__(name="gradwatch-engine")
        self.board = PublishedState()
        self.meters = EngineMetrics()
        self.boot_id = os.urandom(BOOT_ID_BYTES)
        self._log = log
        self._ingest = ingest
        self.refused: Mapping[str, int] = ingest.refused
        self._on_alerts = on_alerts
        self._on_failure = on_failure
        self._session_timeout_ns = int(session_timeout_s * 1e9)
        self._keeping = keeping or RetentionPolicy()
        self._window_steps = window_steps
        self._stopping = threading.Event()
        self._routes: dict[bytes, bytes] = {}  # session -> peer that last spoke for it
        self._dirty: set[str] = set()
        self._published_ns = 0
        self._ticked_ns = self._forgot_ns = now_ns()
        self._withheld = False  # whether alerts were applied that are not stored
        self._ledger = SequenceTracker({})
        self._recover(rules)
        self._ledger = SequenceTracker({s.id: s.acked for s in self._state.sessions.values()})

    def _recover(self, rules: Rules) -> None:
        """Read the newest checkpoint and the log behind it; begin anew if the file is damaged.

        Raises:
            GradwatchError: If it cannot be read or written.
        """
        try:
            try:
                self._fold_log(rules)
            except sqlite3.DatabaseError as error:
                if not self._log.replace(error):
                    raise
                self._fold_log(rules)
        except sqlite3.Error as error:
            msg = f"cannot use the log {self._log.path}: {error}"
            raise GradwatchError(msg) from error
        catch_up(max((s.last_ns for s in self._state.sessions.values()), default=0))
        # Nobody could be heard while we were away.
        now = now_ns()
        alive = (s.id for s in self._state.sessions.values() if s.state is RankState.ALIVE)
        self.board.heard = dict.fromkeys(alive, now)
        self._dirty.update(self._state.runs)
        self._publish(now)

    def _fold_log(self, rules: Rules) -> None:
        """Fold the log, put the rules in force into it, and store alerts a crash kept back."""
        self._dirty.clear()
        self._keeper = Checkpointer(self._log, self._keeping)
        self._state = self._keeper.restore(self._window_steps)
        events: list[Alert] = []
        for offset, entry, ahead in self._keeper.tail(self._state):
            events += self._apply(entry, offset, ahead)
        if rules != self._state.rules:
            entry = Entry(now_ns(), RulesSet(rules.model_dump(mode="json")))
            self._log.append([Line(entry)])
            events += self._apply(entry, self._log.last_offset)
        self.board.cursor = self._log.add_alert_events([_event_row(alert) for alert in events])

    def stop(self) -> None:
        """End the loop after the batch in hand, and wait for it."""
        self._stopping.set()
        if self.is_alive():
            self.join()

    def run(self) -> None:
        """Drain, log, acknowledge, apply, publish, until stopped."""
        try:
            while not self._stopping.is_set():
                self._round()
            if not self._withheld:
                self._keeper.finish(self._state)
        except Exception:
            logger.exception("the engine failed and stops")
            self.board.fault = "the engine failed; see the log"
            self._on_failure()
        finally:
            self._publish(now_ns(), force=True)

    def _round(self) -> None:
        lines: list[Line] = []
        answers: dict[bytes, Answer] = {}  # by session
        began_s = 0.0
        for message in self._ingest.receive(POLL_MS):
            began_s = began_s or time.perf_counter()
            self._take(message, now_ns(), lines, answers)
        now = now_ns()
        lines += self._housekeeping(now)
        if lines and not self._append(lines):
            return
        self._acknowledge(answers)
        if began_s:
            self.meters.lag.observe(time.perf_counter() - began_s)
        self._apply_all(lines)
        self._publish(now)
        if not self._withheld:
            self._keeper.work(now_ns(), self._state)

    def _take(
        self, message: Message, now: int, lines: list[Line], answers: dict[bytes, Answer]
    ) -> None:
        """Judge one message: what goes into the log, and who is to be answered."""
        envelope = message.envelope
        session, record = envelope.session, envelope.record
        if not self._is_owner(message):
            return
        if isinstance(record, Hello):
            if not self._greet(message, record, now, lines):
                return
            answers[session] = Answer(message.peer, welcome=True)
        elif session not in self._ledger:
            # A new log, or one that lost this session: the client says HELLO at a new boot id.
            self._ingest.reply(message.peer, session, Ack(boot_id=self.boot_id, acked=0))
            return
        elif isinstance(record, Beat):
            self._revive(session, now, lines)
            answers.setdefault(session, Answer(message.peer))
        elif type(record) in RECORD_KINDS:
            self._judge(message, now, lines, answers)
        else:
            why = f"{type(record).__name__} from a client"
            self._ingest.refuse("unexpected", why, message.peer)
            return
        self.board.heard[session] = now
        self._routes[session] = message.peer

    def _judge(
        self, message: Message, now: int, lines: list[Line], answers: dict[bytes, Answer]
    ) -> None:
        envelope = message.envelope
        judgement = self._ledger.check(envelope.session, envelope.seq, envelope.low)
        if judgement.gap:
            first, last = judgement.gap
            self.meters.lost += last - first + 1
            lines.append(Line(Entry(now, Gap(envelope.session, *judgement.gap))))
        if judgement.outcome is Outcome.ACCEPT:
            self.meters.stored += 1
            self.meters.stored_bytes += len(message.raw)
            lines.append(Line(Entry(now, Received(envelope)), message.raw))
        elif judgement.outcome is Outcome.DUPLICATE:
            self.board.num_duplicates += 1
        answer = answers.setdefault(envelope.session, Answer(message.peer))
        # A rewind asked for is void once the missing record came after all.
        answer.rewind = judgement.outcome is Outcome.REWIND

    def _is_owner(self, message: Message) -> bool:
        """Tell whether who sent a message may write the run it is for; refuse it if not."""
        envelope, client = message.envelope, message.client
        known = self._state.sessions.get(envelope.session)
        hello = known.hello if known is not None else envelope.record
        if client is None or not isinstance(hello, Hello) or client.may_write(hello.run):
            return True
        reason = f"the key of client {client.name!a} may not write run {hello.run[:80]!a}"
        self._ingest.refuse("owner", reason, message.peer)
        self._ingest.reply(message.peer, envelope.session, Refuse(reason=reason))
        return False

    def _greet(self, message: Message, hello: Hello, now: int, lines: list[Line]) -> bool:
        """Open the session if it is new; return False if it was refused."""
        session = message.envelope.session
        if session in self._ledger:
            self._revive(session, now, lines)
            return True
        refusal = self._refusal(hello, len(message.raw))
        if refusal is not None:
            kind, reason = refusal
            self._ingest.refuse(kind, reason, message.peer)
            self._ingest.reply(message.peer, session, Refuse(reason=reason))
            return False
        self._ledger.open(session)
        lines.append(Line(Entry(now, Opened(session, hello)), message.raw))
        return True

    def _refusal(self, hello: Hello, size: int) -> tuple[str, str] | None:
        """Return what kind of HELLO is not taken in, and the reason; None if this one is."""
        if not is_run_name(hello.run):
            return "run name", f"run name {hello.run[:40]!a} is not {RUN_NAME_RULE}"
        if size > MAX_HELLO_BYTES:
            return "hello size", f"a HELLO of {size} bytes, at most {MAX_HELLO_BYTES} are read"
        if hello.run not in self._state.runs and len(self._state.runs) >= MAX_RUNS:
            return "runs", f"the log holds {MAX_RUNS} runs; start with a new data directory"
        if len(self._ledger) >= MAX_SESSIONS:
            reason = f"the log holds {MAX_SESSIONS} sessions; start with a new data directory"
            return "sessions", reason
        return None

    def _revive(self, session: bytes, now: int, lines: list[Line]) -> None:
        """Note in the log that a session taken for lost is alive after all."""
        known = self._state.sessions.get(session)
        if known is not None and known.state is RankState.LOST:
            lines.append(Line(Entry(now, Opened(session, known.hello))))

    def _housekeeping(self, now: int) -> list[Line]:
        """Once a second: let time pass for waiting frames, and give up on silent sessions."""
        if now - self._ticked_ns < TICK_NS:
            return []
        self._ticked_ns = now
        lines = [
            Line(Entry(now, Lost(session.id)))
            for session in self._state.sessions.values()
            if session.state is RankState.ALIVE
            and now - self.board.heard.get(session.id, now) > self._session_timeout_ns
        ]
        if any(run.current.waiting for run in self._state.runs.values()):
            lines.append(Line(Entry(now, Tick())))
        return lines + self._forgetting(now)

    def _forgetting(self, now: int) -> list[Line]:
        """Let runs go that ended long ago."""
        if now - self._forgot_ns < FORGET_NS:
            return []
        self._forgot_ns = now
        gone = long_ended(self._state, self.board.heard, now, self._keeping.runs_max_age_s)
        return [Line(Entry(now, body)) for body in gone]

    def _append(self, lines: Sequence[Line]) -> bool:
        """Commit lines; return False if stopped before."""
        with self.meters.log_write.time():
            return self._retry_write(lambda: self._log.append(lines))

    def _retry_write(self, write: Callable[[], None]) -> bool:
        """Write, and try again while the disk will not; return False if stopped before."""
        while True:
            try:
                write()
            except sqlite3.Error as error:
                if self.board.fault is None:
                    logger.error("the log cannot be written, nothing is acknowledged: %s", error)
                    self._publish(now_ns(), force=True)
                self.board.fault = f"the log cannot be written: {error}"
                if self._stopping.wait(RETRY_S):
                    return False
            else:
                if self.board.fault is not None:
                    logger.warning("the log can be written again")
                    self.board.fault = None
                return True

    def _acknowledge(self, answers: Mapping[bytes, Answer]) -> None:
        for session, answer in answers.items():
            acked = self._ledger.accepted(session)
            record: Welcome | Ack
            if answer.welcome:
                record = Welcome(boot_id=self.boot_id, acked=acked)
            else:
                record = Ack(boot_id=self.boot_id, acked=acked, rewind=answer.rewind)
            self._ingest.reply(answer.peer, session, record)

    def _apply_all(self, lines: Sequence[Line]) -> None:
        alerts: list[Alert] = []
        for offset, line in enumerate(lines, self._log.last_offset - len(lines) + 1):
            alerts += self._apply(line.entry, offset)
        if alerts:
            self._store_alerts(alerts)

    def _apply(self, entry: Entry, offset: int, ahead: Sequence[str] = ()) -> list[Alert]:
        """Apply one entry. A fault of ours in it must not cost the entries behind it."""
        try:
            self._keeper.note(entry, offset, self._state)
            if isinstance(entry.body, Forgotten):
                self._let_go(entry.body)
            alerts = self._state.apply(entry, ahead) if ahead else self._state.apply(entry)
        except Exception:
            if not self.board.num_apply_errors:
                logger.exception("an entry of the log could not be applied (told once)")
            self.board.num_apply_errors += 1
            return []
        self._mark(entry)
        return alerts

    def _mark(self, entry: Entry) -> None:
        match entry.body:
            case Received(envelope):
                self._dirty.add(self._state.sessions[envelope.session].hello.run)
            case Opened(session, _) | Gap(session, _, _) | Lost(session):
                self._dirty.add(self._state.sessions[session].hello.run)
            case Tick() | RulesSet():
                self._dirty.update(self._state.runs)

    def _let_go(self, gone: Forgotten) -> None:
        """Forget the sessions of attempts that leave memory, and the run if none is left."""
        attempts = self._state.runs[gone.run].attempts
        for attempt in attempts:
            for session in attempt.sessions.values() if attempt.number <= gone.attempts else ():
                self._ledger.forget(session.id)
                self._routes.pop(session.id, None)
                self.board.heard.pop(session.id, None)
        if attempts[-1].number <= gone.attempts:
            self._dirty.discard(gone.run)
            rest = {name: view for name, view in self.board.runs.items() if name != gone.run}
            self.board.runs = MappingProxyType(rest)

    def _store_alerts(self, alerts: Sequence[Alert]) -> None:
        rows = [_event_row(alert) for alert in alerts]

        def store() -> None:
            self.board.cursor = self._log.add_alert_events(rows)

        if not self._retry_write(store):
            self._withheld = True
            return  # the log has what they were derived from: the next start stores them
        self._on_alerts()
        for alert in alerts:
            record = AlertRecord(alert=alert.to_dict())
            for session in self._state.runs[alert.run].current.sessions.values():
                peer = self._routes.get(session.id)
                if peer is not None and session.state is RankState.ALIVE:
                    self._ingest.reply(peer, session.id, record)

    def _publish(self, now: int, *, force: bool = False) -> None:
        if not self._dirty or (now - self._published_ns < PUBLISH_NS and not force):
            return
        views = {name: view_run(self._state.runs[name]) for name in self._dirty}
        self.board.runs = MappingProxyType({**self.board.runs, **views})
        self._dirty.clear()
        self._published_ns = now


def _event_row(alert: Alert) -> tuple[str, str, str, str]:
    """Return what is stored once per alert and change: firing, each higher severity, resolved."""
    rose = alert.state is AlertState.FIRING and alert.raised_step is not None
    change = f"{alert.state}:{alert.severity}" if rose else str(alert.state)
    return alert.id, change, alert.run, json.dumps(jsonable(alert.to_dict()))
