"""Judge of a recorded run: its entries go through the real core, with the defaults."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Self

from benchmarks.alerts.finding import Finding
from benchmarks.alerts.recorded import Recorded
from benchmarks.alerts.replay import SECOND_NS, START_NS, steps
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import BeatProgress, Beats, Entry, Lost, Opened, Received, Tick
from gradwatch_server.storage.checkpoints import decode_run, encode_run
from gradwatch_server.storage.rows import SavedRun
from gradwatch_wire import Bye, Stats
from gradwatch_wire.health import AlertState
from tests.support.whole_state import WholeState

TICK_NS: Final = 5 * SECOND_NS
"""Time without an entry after which the aggregator notes that time passes."""


class Passing:
    """Ticks and BEATs that the log has between the records of a run."""

    def __init__(self) -> None:
        self._last_ns: int | None = None
        self._last_steps: dict[bytes, int] = {}  # of the sessions that are there

    def before(self, entry: Entry) -> Iterator[Entry]:
        """Yield what the log has in the gap before an entry."""
        if self._last_ns is None:
            return
        is_killed = isinstance(entry.body, Lost)
        for now_ns in range(self._last_ns + TICK_NS, entry.received_ns, TICK_NS):
            since_s = (now_ns - self._last_ns) / SECOND_NS
            if not is_killed:
                sessions = self._last_steps.items()
                yield Entry(now_ns, Beats(tuple(BeatProgress(*each, since_s) for each in sessions)))
            yield Entry(now_ns, Tick())

    def follow(self, entry: Entry) -> int | None:
        """Note an entry; return the step of its record, None if it has none."""
        self._last_ns = entry.received_ns
        match entry.body:
            case Opened(session, _):
                self._last_steps[session] = -1
            case Lost(session):
                del self._last_steps[session]
            case Received(envelope):
                match envelope.record:
                    case Stats(step=step):
                        self._last_steps[envelope.session] = step
                        return step
                    case Bye():
                        del self._last_steps[envelope.session]
        return None


class Judge:
    """The core, and what it said so far. A copy goes on by itself."""

    def __init__(self) -> None:
        self.state = WholeState(rules=Rules())
        self._step = -1
        self._passing = Passing()
        self._told: dict[str, Finding] = {}

    def copy(self) -> Self:
        """Return one that knows the same and shares nothing that changes.

        Runs go through their saved form, as in a restart: arrays that are views of one another
        would be apart in a deep copy.
        """
        made = copy.copy(self)
        made.state = WholeState(rules=Rules())
        for run in self.state.runs.values():
            save = encode_run(run, None, (), START_NS)
            saved = SavedRun(save.body or b"", save.attempts)
            again = decode_run(saved, made.state.window_steps)
            for record, known in zip(again.open_records(), run.open_records(), strict=True):
                record.read(known.columns)
            made.state.add(again)
        made.state.forgotten = dict(self.state.forgotten)
        made._passing, made._told = copy.deepcopy(self._passing), dict(self._told)
        return made

    @property
    def findings(self) -> list[Finding]:
        """The alerts so far, one for each id."""
        return list(self._told.values())

    def add(self, entries: Iterable[Entry]) -> None:
        """Apply entries, and between them what the passing of time brings."""
        for entry in entries:
            for passing in self._passing.before(entry):
                # What does not come is the record of the step that is due.
                self._note(self.state.apply(passing), self._step + 1)
            step = self._passing.follow(entry)
            self._step = self._step if step is None else max(self._step, step)
            self._note(self.state.apply(entry), self._step)

    def _note(self, alerts: Sequence[Alert], step: int) -> None:
        for alert in alerts:
            if alert.state is not AlertState.FIRING:
                continue
            known = self._told.get(alert.id)
            finding = _finding(alert, step)
            # One that was a warning before is the same alert still; one that becomes it is told.
            if known is None or (finding.is_warning and not known.is_warning):
                self._told[alert.id] = finding


def judge(
    parent: Recorded, forks: Sequence[Recorded], every: int = 1
) -> tuple[list[Finding], dict[str, list[Finding]]]:
    """Judge a healthy run and its forks; the steps before a fork only once.

    Args:
        parent: The healthy run.
        forks: Its forks.
        every: Spacing of the steps that the clients look at.

    Returns:
        The findings in the parent, and by their names those in the forks from the fork on.
    """
    whole = Judge()
    left = sorted(forks, key=lambda fork: fork.forked_at)
    found: dict[str, list[Finding]] = {}
    for step, entries in steps(parent, every=every):
        while left and left[0].forked_at <= step:
            fork = left.pop(0)
            found[fork.name] = _rest(whole.copy(), fork, every)
        whole.add(entries)
    return whole.findings, found


def _rest(before: Judge, fork: Recorded, every: int) -> list[Finding]:
    for _, entries in steps(fork, fork.forked_at, every):
        before.add(entries)
    return [each for each in before.findings if each.step >= fork.forked_at]


def _finding(alert: Alert, step: int) -> Finding:
    origin = alert.origin
    return Finding(
        step=step,
        rule=alert.rule,
        severity=alert.severity,
        origin_step=origin.step,
        last_good_step=origin.last_good_step,
        layer=origin.layer,
        rank=origin.rank,
        message=alert.message,
        cause=origin.cause,
    )
