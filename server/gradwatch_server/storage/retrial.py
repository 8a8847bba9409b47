"""A stored run, judged once more by other rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.comparison import Compared, compare, incidents
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.entries import Opened
from gradwatch_server.core.run import Run
from gradwatch_server.core.state import State
from gradwatch_server.core.views.rules import describe_rules
from gradwatch_server.core.views.snapshot import view_run
from gradwatch_server.storage.history import History, RunHistory
from gradwatch_server.storage.store import StorageError
from gradwatch_wire.health import AlertState


@dataclass(frozen=True, slots=True)
class JudgedAttempt:
    """What could be judged of one attempt.

    Args:
        attempt: Its number.
        frames: How many steps there are of it.
        first_step: The first of them, None without any.
        last_step: The last that a rank sent, None without any.
        trimmed: Whether records of it are not kept any more, which were before these.
    """

    attempt: int
    frames: int
    first_step: int | None
    last_step: int | None
    trimmed: bool

    @property
    def judged_from(self) -> int | None:
        """The step from which on all that is of it was judged, None without any."""
        return self.first_step if self.trimmed else 0


@dataclass(frozen=True, slots=True)
class Retrial:
    """What other rules say of a stored run, beside what was said then.

    Args:
        attempts: What could be judged.
        alerts: The alerts, in the order of their steps.
        warnings: What an operator should know of the rules.
        not_applied: Entries that could not be applied.
    """

    attempts: list[JudgedAttempt]
    alerts: list[Compared]
    warnings: list[str]
    not_applied: int


@dataclass(slots=True)
class _Replay:
    """The state as it grows, and what is noted on the way."""

    state: State
    run: str
    first_steps: dict[int, int] = field(default_factory=dict)
    not_applied: int = 0

    def note(self, run: Run | None) -> None:
        for attempt in run.attempts if run is not None else ():
            if attempt.num_frames and attempt.number not in self.first_steps:
                steps = attempt.window.series().steps
                if len(steps):
                    self.first_steps[attempt.number] = int(steps[0])


def judge_again(
    history: History,
    run: str,
    rules: Rules,
    window_steps: int,
    on_progress: Callable[[int, int], None] = lambda _read, _all: None,
) -> Retrial:
    """Apply what is stored of a run to an empty state under these rules.

    Args:
        history: Where it is stored; nothing is written.
        run: Name of the run.
        rules: The rules, from the first step on, whatever was in force then.
        window_steps: Frames that a window holds.
        on_progress: Is told how many entries of all are read.

    Raises:
        StorageError: If nothing is stored of the run, or the store cannot be read.
    """
    stored = RunHistory(history, run)
    replay = _Replay(State(window_steps, rules), run)
    told = []
    for entry in stored.entries(on_progress):
        if isinstance(entry.body, Opened) and run not in replay.state.runs:
            replay.state.forgotten[run] = stored.attempts_before(entry.body.session)
        try:
            told += replay.state.apply(entry)
        except Exception:  # noqa: BLE001 - as the engine does: it must not cost the entries after it
            replay.not_applied += 1
        replay.note(replay.state.runs.get(run))
    if run not in replay.state.runs:
        known = ", ".join(sorted(stored.others)[:5]) or "none"
        msg = f"no records of run {run[:80]!a} are in {history.name}; runs that have some: {known}"
        raise StorageError(msg)
    attempts = _judged(replay, stored)
    return Retrial(
        attempts=attempts,
        alerts=compare(
            incidents(alert.to_dict() for alert in (*told, *_still_firing(replay))),
            incidents(event.alert for event in stored.alert_events()),
            {own.attempt: step for own in attempts if (step := own.judged_from) is not None},
        ),
        warnings=_warnings(replay, rules),
        not_applied=replay.not_applied,
    )


def _still_firing(replay: _Replay) -> Iterator[Alert]:
    """Yield what fires at the end, with the last bad step: it was told with an earlier one."""
    for attempt in replay.state.runs[replay.run].attempts:
        for alert in attempt.active_alerts.alerts():
            if alert.state is AlertState.FIRING:
                yield alert


def _judged(replay: _Replay, stored: RunHistory) -> list[JudgedAttempt]:
    return [
        JudgedAttempt(
            attempt=attempt.number,
            frames=attempt.num_frames,
            first_step=replay.first_steps.get(attempt.number),
            last_step=max(
                (own.last_step for own in attempt.sessions.values() if own.last_step >= 0),
                default=None,
            ),
            trimmed=any(own.id in stored.trimmed for own in attempt.sessions.values()),
        )
        for attempt in replay.state.runs[replay.run].attempts
    ]


def _warnings(replay: _Replay, rules: Rules) -> list[str]:
    view = view_run(replay.state.runs[replay.run], rules)
    return [
        f"rule {own['rule']}: {own['watches']['warning']}"
        for own in describe_rules(rules, view)
        if own["watches"]["warning"]
    ]
