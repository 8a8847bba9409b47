"""State that takes the entries of all runs as one list, for tests and benchmarks."""

from __future__ import annotations

import json
from typing import Final

from gradwatch_server.budgets import LoggedBudgets
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.silences import fits
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
from gradwatch_server.core.frames.window import WINDOW_STEPS
from gradwatch_server.core.state import State

UNREPEATED: Final = {"repeated_gradient": {"enabled": False}}
"""Rules of most tests, whose gradients are the same at each step."""


class WholeState(State):
    """State that finds the runs of an entry, and begins runs, as the engine does.

    Attributes:
        forgotten: Run that left memory to its last attempt.
    """

    def __init__(self, window_steps: int = WINDOW_STEPS, rules: Rules | None = None) -> None:
        super().__init__(window_steps, rules or Rules.model_validate(UNREPEATED))
        self.forgotten: dict[str, int] = {}

    def apply(self, entry: Entry) -> list[Alert]:
        """Apply an entry to each run that it concerns; return the alerts of all of them.

        A run that begins has the settings of this state.
        """
        alerts: list[Alert] = []
        match entry.body:
            case RulesSet(rules):
                self.rules = Rules.model_validate_json(rules)
            case BudgetsSet(budgets):
                self.budgets = LoggedBudgets.model_construct(**json.loads(budgets))
            case SilenceAdded(silence):
                self.silences.add(silence)
            case SilenceRemoved(silence_id):
                self.silences.remove(silence_id)
            case Opened(_, hello) if hello.run not in self.runs:
                began = self.beginning(hello.run, self.forgotten.get(hello.run, 0))
                self.apply_to(hello.run, Entry(entry.received_ns, began))
        for name in concerned(self, entry):
            run = self.runs.get(name)
            alerts += self.apply_to(name, entry)
            if run is not None and not run.attempts:
                self.forgotten[name] = run.num_forgotten
        return alerts


def concerned(state: State, entry: Entry) -> list[str]:
    """Return the names of the runs that an entry concerns."""
    match entry.body:
        case Received(envelope):
            return [state.sessions[envelope.session].hello.run]
        case Opened(_, hello):
            return [hello.run]
        case Gap(session, _, _) | Lost(session):
            return [state.sessions[session].hello.run]
        case ManifestsDropped(session, _):
            return [state.sessions[session].hello.run] if session in state.sessions else []
        case Beats(progress):
            known = (state.sessions.get(own.session) for own in progress)
            return list(dict.fromkeys(own.hello.run for own in known if own is not None))
        case Began():
            return []
        case Acknowledged(run=run) | Forgotten(run=run) | FramesClosed(run=run):
            return [run] if run in state.runs else []
        case SilenceAdded(silence):
            return [name for name in state.runs if fits(silence.run, name)]
    return list(state.runs)
