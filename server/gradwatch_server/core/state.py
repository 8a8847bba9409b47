"""The state: all runs in memory, and the settings that new ones begin with."""

from __future__ import annotations

from typing import Final

from gradwatch_server.budgets import LoggedBudgets
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.silences import Silences, fits
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
    RulesSet,
    SilenceAdded,
    SilenceRemoved,
)
from gradwatch_server.core.frames.closed_frame import FrameRecorder
from gradwatch_server.core.frames.window import WINDOW_STEPS
from gradwatch_server.core.run import Run
from gradwatch_server.core.session import Session

MAX_FORGOTTEN: Final = 10_000
"""Names of forgotten runs whose numbers of attempts are kept in memory."""


class State:
    """All runs. Each follows from its own entries alone.

    Attributes:
        runs: Name to run.
        sessions: Sessions of all runs, by id.
        rules: The rules of runs that begin.
        budgets: The budgets of runs that begin.
        silences: All silences; a run has those that may fit it.
        forgotten: Run that left memory to its last attempt.
        window_steps: Frames that the window of an attempt holds.
        recorder: Takes each frame that closes.
    """

    def __init__(self, window_steps: int = WINDOW_STEPS, rules: Rules | None = None) -> None:
        self.runs: dict[str, Run] = {}
        self.sessions: dict[bytes, Session] = {}
        self.rules = rules or Rules()
        self.budgets = LoggedBudgets.unlimited()
        self.silences = Silences()
        self.forgotten: dict[str, int] = {}
        self.window_steps = window_steps
        self.recorder: FrameRecorder | None = None
        self._begun: dict[str, Run] = {}  # runs without an attempt yet

    def add(self, run: Run) -> None:
        """Take in a run as it is."""
        run.window_steps = self.window_steps
        run.record_with(self.recorder)
        self.runs[run.name] = run
        self.sessions.update(run.sessions)

    def beginning(self, name: str, attempts: int) -> Began:
        """Return the entry with which a run of this name begins that had so many attempts."""
        fitting = [own for own in self.silences.state_dict() if fits(own["run"], name)]
        return Began(
            attempts,
            self.rules.model_dump(mode="json"),
            self.budgets.model_dump(mode="json"),
            tuple(fitting),
        )

    def apply(self, entry: Entry) -> list[Alert]:
        """Apply an entry to each run that it concerns; return the alerts of all of them.

        A run that begins has the settings of this state.
        """
        alerts: list[Alert] = []
        match entry.body:
            case RulesSet(rules):
                self.rules = Rules.model_validate(rules)
            case BudgetsSet(budgets):
                self.budgets = LoggedBudgets.model_construct(**budgets)
            case SilenceAdded(silence):
                self.silences.add(silence)
            case SilenceRemoved(silence_id):
                self.silences.remove(silence_id)
            case Opened(_, hello) if hello.run not in self.runs:
                began = self.beginning(hello.run, self.forgotten.get(hello.run, 0))
                self.apply_to(hello.run, Entry(entry.received_ns, began))
        for name in self._concerned(entry):
            alerts += self.apply_to(name, entry)
        return alerts

    def apply_to(self, name: str, entry: Entry, number: int | None = None) -> list[Alert]:
        """Apply an entry of one run's log; return the alerts that come of it, in order.

        An entry of a run that is not in memory, and does not begin one, changes nothing.

        Args:
            name: Name of the run.
            entry: The entry.
            number: Its number in the log of the run; None for the next one.
        """
        run = self.runs.get(name)
        if run is None:
            if not isinstance(entry.body, Began | Opened):
                return []
            run = self._begin(name, entry.received_ns)
        run.position = run.position + 1 if number is None else number
        before = set(run.sessions) if isinstance(entry.body, Forgotten) else None
        alerts = list(run.apply(entry))
        if isinstance(entry.body, Opened):
            self.sessions[entry.body.session] = run.sessions[entry.body.session]
            self.runs[name] = run
            self._begun.pop(name, None)
        if before is not None:
            for session_id in before - run.sessions.keys():
                self.sessions.pop(session_id, None)
            self._forget(run)
        return alerts

    def _begin(self, name: str, now_ns: int) -> Run:
        """Return a run without an attempt yet, which nobody sees."""
        run = self._begun.get(name)
        if run is None:
            run = self._begun[name] = Run(name, now_ns)
            run.window_steps, run.recorder = self.window_steps, self.recorder
        return run

    def _forget(self, run: Run) -> None:
        if run.attempts:
            return
        self.runs.pop(run.name, None)
        self.forgotten.pop(run.name, None)
        self.forgotten[run.name] = run.num_forgotten
        if len(self.forgotten) > MAX_FORGOTTEN:
            del self.forgotten[next(iter(self.forgotten))]

    def _concerned(self, entry: Entry) -> list[str]:
        """Return the names of the runs that an entry concerns."""
        match entry.body:
            case Received(envelope):
                return [self.sessions[envelope.session].hello.run]
            case Opened(_, hello):
                return [hello.run]
            case Gap(session, _, _) | Lost(session):
                return [self.sessions[session].hello.run]
            case ManifestsDropped(session, _):
                return [self.sessions[session].hello.run] if session in self.sessions else []
            case Beats(progress):
                known = (self.sessions.get(own.session) for own in progress)
                return list(dict.fromkeys(own.hello.run for own in known if own is not None))
            case Began():
                return []
            case Acknowledged(run=run) | Forgotten(run=run) | FramesClosed(run=run):
                return [run] if run in self.runs else []
            case SilenceAdded(silence):
                return [name for name in self.runs if fits(silence.run, name)]
        return list(self.runs)
