"""What readers see: immutable views of runs, made by the engine, read by any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.flags import Flags
from gradwatch_server.core.alerting.origin import FirstBad
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.frames.gains import GainFrame
from gradwatch_server.core.frames.window import Series
from gradwatch_server.core.losses import LostRange
from gradwatch_server.core.noise_scale import NoiseSample
from gradwatch_server.core.run import Run
from gradwatch_server.core.session import Session
from gradwatch_wire.health import RankState

MAX_OTHERS: Final = 8
"""Attempts that are over and still shown, the newest."""


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank of the current attempt; `session` is None before it said HELLO."""

    rank: int
    session: bytes | None
    state: RankState
    host: str
    pid: int
    last_step: int
    last_ns: int
    stored: int
    lost: int
    unresolved: int
    reason: str
    gaps: tuple[LostRange, ...]


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt in a line."""

    number: int
    started_ns: int
    world: int
    frames: int
    first_bad: FirstBad | None


@dataclass(frozen=True, slots=True)
class RunView:
    """One attempt of a run as it stood after a batch of the log; of the run, the current one.

    Args:
        others: Of the current one: other attempts, those that live and the newest that are over.
        is_live: Whether it lives beside, or is, the newest.
        recent_lost: Records lost while the frames of the window closed; so for those that were
            late, and those without their manifest.
        revision: Changes whenever something of the attempt does.
    """

    name: str
    created_ns: int
    updated_ns: int
    attempt: int
    attempts: tuple[AttemptView, ...]
    world: int
    names: tuple[str, ...]
    numel: tuple[int, ...]
    groups: Mapping[str, BoolArray]  # (layers,) each, named ones as declared
    series: Series
    frame: Frame | None
    flags: Flags | None
    rules: Rules
    gains: GainFrame | None
    noise_scale: tuple[NoiseSample, ...]
    first_bad: FirstBad | None
    ranks: tuple[RankView, ...]
    alerts: tuple[Alert, ...]
    events: Mapping[str, int]
    skipped_steps: int  # the most that any rank told of
    stored: int
    lost: int
    late: int
    unresolved: int
    frames: int
    recent_lost: int = 0
    recent_late: int = 0
    recent_unresolved: int = 0
    is_live: bool = False
    revision: int = field(default=0, repr=False, compare=False)
    others: tuple[RunView, ...] = field(default=(), repr=False, compare=False)

    def of_attempt(self, number: int) -> RunView | None:
        """Return the view of an attempt, None if there is none."""
        views = (self, *self.others)
        return next((view for view in views if view.attempt == number), None)


def view_run(run: Run, rules: Rules | None = None, before: RunView | None = None) -> RunView:
    """Copy what readers need of a run.

    Args:
        run: The run.
        rules: Those in force; without copies by default.
        before: Its last view, of which that is kept which is still so.
    """
    current, live = run.current, run.live
    known = {} if before is None else {view.attempt: view for view in before.others}
    others = []
    for attempt in _others(run, current):
        view, is_live = known.get(attempt.number), attempt in live
        if view is None or (view.revision, view.is_live) != (attempt.revision, is_live):
            view = _view_attempt(run, attempt, rules, is_live=is_live)
        others.append(view)
    return replace(
        _view_attempt(run, current, rules, is_live=current in live), others=tuple(others)
    )


def view_attempt(run: Run, number: int, rules: Rules) -> RunView | None:
    """Copy what readers need of one attempt that is over, None if there is none of this number."""
    found = next((own for own in run.attempts if own.number == number), None)
    return None if found is None else _view_attempt(run, found, rules, is_live=False)


def _others(run: Run, current: Attempt) -> list[Attempt]:
    """Return the other attempts that are shown: those that live, and the newest."""
    newest = [own for own in run.attempts[-MAX_OTHERS:] if own.retired]
    shown = [*(own for own in run.judged), *newest]
    return sorted((own for own in shown if own is not current), key=lambda own: own.number)


def _view_attempt(run: Run, attempt: Attempt, rules: Rules | None, *, is_live: bool) -> RunView:
    ranks = _ranks(attempt)
    return RunView(
        name=run.name,
        created_ns=run.created_ns,
        updated_ns=attempt.updated_ns,
        attempt=attempt.number,
        attempts=tuple(
            AttemptView(a.number, a.started_ns, a.world, a.num_frames, a.first_bad)
            for a in run.attempts
        ),
        world=attempt.world,
        names=tuple(attempt.layers.names),
        numel=tuple(attempt.layers.numel),
        groups=dict(attempt.layers.groups()),
        series=attempt.window.series(),
        frame=attempt.last_frame,
        flags=attempt.closed.last_flags,
        rules=rules or Rules(),
        gains=attempt.closed.last_gains,
        noise_scale=attempt.closed.noise_scale.series(),
        first_bad=attempt.first_bad,
        ranks=ranks,
        alerts=tuple(alert for a in reversed(run.attempts) for alert in a.active_alerts.alerts()),
        events=Counter(attempt.counts.events),
        skipped_steps=max((s.num_skipped for s in attempt.sessions.values()), default=0),
        stored=run.num_stored,
        lost=run.num_lost,
        late=attempt.counts.num_late,
        unresolved=sum(rank.unresolved for rank in ranks),
        frames=attempt.num_frames,
        recent_lost=attempt.counts.lost.value(attempt.num_frames),
        recent_late=attempt.counts.late.value(attempt.num_frames),
        recent_unresolved=attempt.counts.unresolved.value(attempt.num_frames),
        is_live=is_live,
        revision=attempt.revision,
    )


def _ranks(attempt: Attempt) -> tuple[RankView, ...]:
    return tuple(_view_session(attempt.sessions[rank]) for rank in sorted(attempt.sessions))


def _view_session(session: Session) -> RankView:
    return RankView(
        rank=session.hello.rank,
        session=session.id,
        state=session.state,
        host=session.hello.host,
        pid=session.hello.pid,
        last_step=session.last_step,
        last_ns=session.last_ns,
        stored=session.num_stored,
        lost=session.num_lost,
        unresolved=session.num_unresolved,
        reason=session.reason,
        gaps=session.losses.ranges(),
    )
