"""The log of the process: when runs attach, take their first step, end, crash or collide.

A line each, once, at most `RUN_LINES` an hour of one run and so many a minute of all. The lines
follow from the entries of the log of records, and are written once these are committed, not when
they are read again at a start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.rules.layer import LayerRule
from gradwatch_server.core.attempt.attempt import Attempt
from gradwatch_server.core.entries import Entry, Forgotten, Lost, Opened, Received
from gradwatch_server.core.printable import printable
from gradwatch_server.core.run import Run
from gradwatch_server.core.session import EXCEPTION, RankSession
from gradwatch_server.core.state import State
from gradwatch_server.core.views.rules import count_watched, no_layers
from gradwatch_server.core.views.snapshot import RunView, view_run
from gradwatch_wire import Bye, Hello, Stats
from gradwatch_wire.health import RankState
from gradwatch_wire.session.replayed import is_replayed

logger = logging.getLogger(__name__)

RUN_LINES: Final = 20
HOUR_NS: Final = 3_600_000_000_000
MINUTE_NS: Final = 60_000_000_000


@dataclass(slots=True)
class _Window:
    """A number of lines in a time; what is beyond is counted."""

    most: float
    length_ns: int
    began_ns: int = 0
    num_told: int = 0
    num_held: int = 0

    def turn(self, now_ns: int) -> int:
        """Begin anew if the time is over, and return how many lines were held back in it."""
        if now_ns - self.began_ns < self.length_ns:
            return 0
        held, self.num_held = self.num_held, 0
        self.began_ns, self.num_told = now_ns, 0
        return held

    def takes(self) -> bool:
        """Count a line; return whether it may be written."""
        if self.num_told < self.most:
            self.num_told += 1
            return True
        self.num_held += 1
        return False


@dataclass(slots=True)
class _RunLines:
    """Lines that were written about a run."""

    window: _Window = field(default_factory=lambda: _Window(RUN_LINES, HOUR_NS))
    stepped: int = 0  # the newest attempt of which the first step was told
    beside: tuple[int, ...] = ()  # the jobs that were told to live side by side


@dataclass(frozen=True, slots=True)
class _Checked:
    """State of a run when its rules were checked."""

    attempt: int
    num_layers: int
    rules: Rules


class UnmatchedRules:
    """Warnings of rules that are limited to layers that a run has none of."""

    def __init__(self) -> None:
        self._checked: dict[str, _Checked] = {}
        self._told: set[tuple[str, str]] = set()

    def check(self, run: Run, rules: Rules) -> None:
        """Check a run once it has a frame, and again when its layers or the rules are others."""
        current = run.current
        if not current.num_frames:  # until then layers may still be declared
            return
        now = _Checked(current.number, len(current.layers.names), rules)
        before = self._checked.get(run.name)
        if before == now and before.rules is rules:
            return
        if before is not None and before.rules is not rules:
            self._told = {key for key in self._told if key[0] != run.name}
        self._checked[run.name] = now
        self._tell(view_run(run, run.rules), rules)

    def keep(self, runs: AbstractSet[str]) -> None:
        """Forget runs that left memory."""
        for name in self._checked.keys() - runs:
            del self._checked[name]
            self._told = {key for key in self._told if key[0] != name}

    def _tell(self, view: RunView, rules: Rules) -> None:
        for name, count in count_watched(rules, view).items():
            rule = rules.root[name]
            if count or not isinstance(rule, LayerRule) or (view.name, name) in self._told:
                continue
            self._told.add((view.name, name))
            text = printable(f"rule {name} watches no layer of run {view.name}: ")
            logger.warning("%s", text + printable(no_layers(rule, view)))


class RunLog:
    """Lines about runs, from each entry after it was applied."""

    def __init__(self, state: State, lines_per_min: float) -> None:
        self._state = state
        self._all = _Window(lines_per_min, MINUTE_NS)
        self._failed = False
        self._lines: list[tuple[int, str]] = []  # level and text of those that are not written yet
        self._lost: set[bytes] = set()
        self._told: dict[str, _RunLines] = {}
        self._changed: set[str] = set()  # runs with entries since the rules were checked
        self._unmatched = UnmatchedRules()

    def adopt(self, run: Run) -> None:
        """Go on with a run of which an earlier start told."""
        lost = (session.id for session in run.sessions.values() if session.state is RankState.LOST)
        self._lost.update(lost)
        self._told[run.name] = _RunLines(stepped=_stepped(run))
        self._changed.add(run.name)

    def check_rules(self) -> None:
        """Warn of rules that watch no layer of a run; of each run once it has a frame."""
        for name in self._changed & self._state.runs.keys():
            self._unmatched.check(self._state.runs[name], self._state.rules)
        self._unmatched.keep(self._state.runs.keys())
        self._changed.clear()

    def note(self, name: str, entries: Iterable[Entry]) -> None:
        """Make the lines of entries of a run that were just applied.

        A fault in that costs them only.
        """
        self._changed.add(name)
        try:
            is_quiet = not self._lost and self._is_quiet(name)
            for entry in entries:
                if not (is_quiet and _is_step(entry)):
                    self._note(entry)
        except Exception:
            if not self._failed:
                logger.exception("the log line of an entry could not be made (told once)")
            self._failed = True

    def _is_quiet(self, name: str) -> bool:
        """Tell whether the next steps of a run are not worth a line."""
        run, told = self._state.runs.get(name), self._told.get(name)
        if run is None or told is None:
            return False
        return [attempt.number for attempt in run.judged] == [told.stepped]

    def write(self) -> None:
        """Write the lines of entries that are committed."""
        lines, self._lines = self._lines, []
        for level, line in lines:
            logger.log(level, "%s", line)

    def _note(self, entry: Entry) -> None:
        now_ns = entry.received_ns
        match entry.body:
            case Received(envelope):
                session = self._state.sessions[envelope.session]
                self._return(session, now_ns)
                if isinstance(envelope.record, Stats):
                    self._step(session, envelope.record.step, now_ns)
                elif isinstance(envelope.record, Bye):
                    self._leave(session, envelope.record, now_ns)
            case Opened(session_id, hello) if not is_replayed(hello):
                session = self._state.sessions[session_id]
                if not self._return(session, now_ns):
                    self._attach(session, hello, now_ns)
            case Lost(session_id):
                self._lose(self._state.sessions[session_id], now_ns)
            case Forgotten(name, _):
                self._lost &= self._state.sessions.keys()
                if name not in self._state.runs:
                    self._told.pop(name, None)

    def _attach(self, session: RankSession, hello: Hello, now_ns: int) -> None:
        attempt = self._attempt(session)
        who = f"rank {hello.rank} of {attempt.world} on {printable(hello.host)}, pid {hello.pid}"
        num = len(attempt.sessions)
        if num == 1:
            self._write(session, now_ns, "attached: %s", who)
        elif num == attempt.world:
            self._write(session, now_ns, "all %d ranks attached", num)

    def _return(self, session: RankSession, now_ns: int) -> bool:
        if session.id not in self._lost:
            return False
        self._lost.discard(session.id)
        self._write(session, now_ns, "rank %d is heard again", session.hello.rank)
        return True

    def _step(self, session: RankSession, step: int, now_ns: int) -> None:
        told = self._of(session.hello.run)
        if session.attempt > told.stepped and not session.is_from_files:
            told.stepped = session.attempt
            self._write(session, now_ns, "first step: %d", step)
        run = self._state.runs[session.hello.run]
        if session.attempt < run.attempts[-1].number:
            self._collide(session, run, told, now_ns)

    def _collide(self, session: RankSession, run: Run, told: _RunLines, now_ns: int) -> None:
        numbers = tuple(attempt.number for attempt in run.live)
        if len(numbers) > 1 and numbers != told.beside:
            told.beside = numbers
            text = "%d live jobs under this name, attempts %s: give each a run name of its own"
            shown = ", ".join(map(str, numbers))
            self._write(session, now_ns, text, len(numbers), shown, level=logging.WARNING)

    def _leave(self, session: RankSession, bye: Bye, now_ns: int) -> None:
        attempt, rank = self._attempt(session), session.hello.rank
        if bye.reason == EXCEPTION:
            text = "rank %d ended with an exception, last step %s"
            self._write(session, now_ns, text, rank, _last(session), level=logging.WARNING)
        if attempt.lives:
            return
        sessions = attempt.sessions.values()
        stored, lost = (sum(getattr(s, n) for s in sessions) for n in ("num_stored", "num_lost"))
        text = "ended: %d of %d ranks, %d records stored, %d lost"
        self._write(session, now_ns, text, len(sessions), attempt.world, stored, lost)

    def _lose(self, session: RankSession, now_ns: int) -> None:
        self._lost.add(session.id)
        text = "rank %d is lost: no sign of life for %.0f s, last step %s"
        silent_s = (now_ns - session.heard_ns) / 1e9
        rank, last = session.hello.rank, _last(session)
        self._write(session, now_ns, text, rank, silent_s, last, level=logging.WARNING)

    def _attempt(self, session: RankSession) -> Attempt:
        return self._state.runs[session.hello.run].attempt_of(session)

    def _of(self, run: str) -> _RunLines:
        return self._told.setdefault(run, _RunLines())

    def _write(
        self,
        session: RankSession,
        now_ns: int,
        text: str,
        *values: object,
        level: int = logging.INFO,
    ) -> None:
        name = session.hello.run
        window = self._of(name).window
        if held := window.turn(now_ns):
            left_out = f"run {name}: {held} more lines in the hour before were left out"
            self._lines.append((logging.INFO, left_out))
        if held := self._all.turn(now_ns):
            left_out = f"{held} more lines about runs in the minute before were left out"
            self._lines.append((logging.INFO, left_out))
        if window.takes() and self._all.takes():
            line = f"run {name}, attempt {session.attempt}: {text % values}"
            self._lines.append((level, line))


def _is_step(entry: Entry) -> bool:
    body = entry.body
    return type(body) is Received and type(body.envelope.record) is Stats


def _stepped(run: Run) -> int:
    """Return the newest attempt that has taken a step."""
    numbers = (attempt.number for attempt in run.attempts if attempt.num_frames or attempt.waiting)
    return max(numbers, default=0)


def _last(session: RankSession) -> str:
    return "none" if session.last_step < 0 else str(session.last_step)
