"""The state: all runs in memory, and the settings that new ones begin with."""

from __future__ import annotations

from gradwatch_server.budgets import LoggedBudgets
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.alerting.silences import Silences, fits
from gradwatch_server.core.entries import Began, Entry, Forgotten, Opened, Received
from gradwatch_server.core.frames.closed_frame import FrameRecorder
from gradwatch_server.core.frames.window import WINDOW_STEPS
from gradwatch_server.core.run import Run
from gradwatch_server.core.session import RankSession


class State:
    """All runs. Each follows from its own entries alone."""

    def __init__(self, window_steps: int = WINDOW_STEPS, rules: Rules | None = None) -> None:
        self.runs: dict[str, Run] = {}
        self.sessions: dict[bytes, RankSession] = {}
        self.rules = rules or Rules()
        self.budgets = LoggedBudgets.unlimited()
        self.silences = Silences()
        self.window_steps = window_steps
        self.recorder: FrameRecorder | None = None
        self._begun: dict[str, Run] = {}  # runs without an attempt yet

    def add(self, run: Run) -> None:
        run.window_steps = self.window_steps
        run.record_with(self.recorder)
        self.runs[run.name] = run
        self.sessions.update(run.sessions)

    def every_of(self, session: bytes) -> int:
        """Return how many steps are between two that all ranks of a session's attempt measure."""
        known = self.sessions.get(session)
        run = None if known is None else self.runs.get(known.hello.run)
        return 1 if known is None or run is None else run.attempt_of(known).every

    def beginning(self, name: str, attempts: int) -> Began:
        """Return the entry with which a run of this name begins that had so many attempts."""
        fitting = [silence for silence in self.silences.state_dict() if fits(silence["run"], name)]
        return Began(attempts, self.rules.json_text, self.budgets.model_dump_json(), tuple(fitting))

    def apply_to(self, name: str, entry: Entry, number: int | None = None) -> list[Alert]:
        """Apply an entry of one run's log; return the alerts that come of it, in order.

        An entry of a run that is not in memory, and does not begin one, changes nothing.

        Args:
            number: Its number in the log of the run; None for the next one.
        """
        run = self.runs.get(name)
        if run is not None and type(entry.body) is Received:  # nearly always
            run.position = run.position + 1 if number is None else number
            return run.receive(entry.body.envelope, entry.received_ns)
        if run is None:
            if not isinstance(entry.body, Began | Opened):
                return []
            run = self._begin(name, entry.received_ns)
        run.position = run.position + 1 if number is None else number
        before = set(run.sessions) if isinstance(entry.body, Forgotten) else None
        alerts = run.apply(entry)
        if isinstance(entry.body, Opened):
            self.sessions[entry.body.session] = run.sessions[entry.body.session]
            self.runs[name] = run
            self._begun.pop(name, None)
        if before is not None:
            for session_id in before - run.sessions.keys():
                self.sessions.pop(session_id, None)
            if not run.attempts:
                self.runs.pop(name, None)
        return alerts

    def _begin(self, name: str, now_ns: int) -> Run:
        """Return a run without an attempt yet, which nobody sees."""
        run = self._begun.get(name)
        if run is None:
            run = self._begun[name] = Run(name, now_ns)
            run.window_steps, run.recorder = self.window_steps, self.recorder
        return run
