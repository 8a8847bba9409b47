"""Immutable views of runs, made by the engine, read by any thread.

A view takes over from the one before it what is still so: of thousands of ranks, attempts and runs
few change between two of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import is_
from typing import TypeVar

from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.flags import Flags
from gradwatch_server.core.alerting.origin import FirstBad
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.arrays import BoolArray
from gradwatch_server.core.attempt import Attempt
from gradwatch_server.core.frames.frame import Frame
from gradwatch_server.core.frames.gains import GainFrame
from gradwatch_server.core.frames.window import Series
from gradwatch_server.core.liveness import Gaps
from gradwatch_server.core.losses import LostRange
from gradwatch_server.core.noise_scale import NoiseSample
from gradwatch_server.core.run import Run
from gradwatch_server.core.session import RankSession
from gradwatch_wire.health import RankState

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank of the current attempt; `session` is None before it said HELLO.

    Args:
        revision: Changes whenever something of its session does.
    """

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
    pace: str = ""
    place: str = ""
    stack: str = ""
    revision: int = field(default=0, repr=False, compare=False)


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
        recent_lost: Records lost while the frames of the window closed; so for those that were
            late, and those without their manifest.
        revision: Changes whenever an entry is of the attempt.
        run_revision: Number of the run's newest committed entry for readers, see `PublishedState`.
        unknown_layers: Reason why norms of layers are not known, empty if they are.
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
    is_relearnt: bool = field(default=False, repr=False, compare=False)
    revision: int = field(default=0, repr=False, compare=False)
    gaps: Gaps = field(default_factory=Gaps, repr=False, compare=False)
    others: tuple[RunView, ...] = field(default=(), repr=False, compare=False)
    built_ns: int = field(default=0, repr=False, compare=False)
    run_revision: int = field(default=0, repr=False, compare=False)
    unknown_layers: str = ""

    def of_attempt(self, number: int) -> RunView | None:
        """Return the view of an attempt, None if there is none."""
        views = (self, *self.others)
        return next((view for view in views if view.attempt == number), None)


def view_run(run: Run, rules: Rules | None = None, before: RunView | None = None) -> RunView:
    """Copy what readers need of a run.

    Args:
        before: Its last view, of which that is kept which is still so.
    """
    rules = rules or Rules()
    of_run = _OfRun.of(run, before)
    known = {} if before is None else {view.attempt: view for view in (before, *before.others)}
    current, live = run.current, run.live

    def view(attempt: Attempt) -> RunView:
        before, is_live = known.get(attempt.number), attempt in live
        if before is not None and before.is_live == is_live and _is_still(before, attempt, rules):
            return of_run.put_into(before)
        return _view_attempt(run, attempt, rules, of_run, before, is_live=is_live)

    shown = view(current)
    others = tuple(view(attempt) for attempt in run.shown if attempt is not current)
    others = _same(others, shown.others)
    return shown if others is shown.others else replace(shown, others=others)


def view_attempt(run: Run, number: int, rules: Rules) -> RunView | None:
    """Copy what readers need of one attempt that is over, None if there is none of this number."""
    chosen = next((attempt for attempt in run.attempts if attempt.number == number), None)
    if chosen is None:
        return None
    return _view_attempt(run, chosen, rules, _OfRun.of(run, None), None, is_live=False)


@dataclass(frozen=True, slots=True)
class _OfRun:
    """Common part of the views of all attempts of a run."""

    attempts: tuple[AttemptView, ...]
    alerts: tuple[Alert, ...]
    stored: int
    lost: int

    @classmethod
    def of(cls, run: Run, before: RunView | None) -> _OfRun:
        known = {} if before is None else {line.number: line for line in before.attempts}
        attempts = tuple(_view_line(attempt, known.get(attempt.number)) for attempt in run.attempts)
        alerts = tuple(alert for a in reversed(run.attempts) for alert in a.active_alerts.alerts())
        if before is not None:
            attempts, alerts = _same(attempts, before.attempts), _same(alerts, before.alerts)
        return cls(attempts, alerts, run.num_stored, run.num_lost)

    def put_into(self, view: RunView) -> RunView:
        is_same = view.attempts is self.attempts and view.alerts is self.alerts
        if is_same and (view.stored, view.lost) == (self.stored, self.lost):
            return view
        return replace(
            view, attempts=self.attempts, alerts=self.alerts, stored=self.stored, lost=self.lost
        )


def _same(new: tuple[T, ...], old: tuple[T, ...]) -> tuple[T, ...]:
    return old if len(new) == len(old) and all(map(is_, new, old)) else new


def _view_line(attempt: Attempt, before: AttemptView | None) -> AttemptView:
    line = (attempt.num_frames, attempt.first_bad)
    if before is not None and (before.frames, before.first_bad) == line:
        return before
    return AttemptView(
        attempt.number, attempt.started_ns, attempt.world, attempt.num_frames, attempt.first_bad
    )


def _is_still(view: RunView, attempt: Attempt, rules: Rules) -> bool:
    """Tell whether nothing of an attempt changed that is not of the run as a whole.

    No entry may be of it, and yet frames close with time.
    """
    return (
        view.revision == attempt.revision
        and view.frames == attempt.num_frames
        and view.updated_ns == attempt.updated_ns
        and view.late == attempt.counts.num_late
        and view.rules is rules
        and view.gains is attempt.closed.last_gains
        and view.first_bad is attempt.first_bad
    )


def _view_attempt(
    run: Run,
    attempt: Attempt,
    rules: Rules,
    of_run: _OfRun,
    before: RunView | None,
    *,
    is_live: bool,
) -> RunView:
    ranks = _ranks(attempt, () if before is None else before.ranks)
    names, numel = attempt.layers.names, attempt.layers.numel
    is_known = before is not None and len(before.names) == len(names)  # names only join
    return RunView(
        name=run.name,
        is_relearnt=run.is_relearnt,
        created_ns=run.created_ns,
        updated_ns=attempt.updated_ns,
        attempt=attempt.number,
        attempts=of_run.attempts,
        world=attempt.world,
        names=before.names if before and is_known else tuple(names),
        numel=before.numel if before and is_known else tuple(numel),
        groups=dict(attempt.layers.groups()),
        series=attempt.window.series(),
        frame=attempt.last_frame,
        flags=attempt.closed.last_flags,
        rules=rules,
        gains=attempt.closed.last_gains,
        noise_scale=attempt.closed.noise_scale.series(),
        first_bad=attempt.first_bad,
        ranks=ranks,
        alerts=of_run.alerts,
        events=Counter(attempt.counts.events),
        skipped_steps=max((s.num_skipped for s in attempt.sessions.values()), default=0),
        stored=of_run.stored,
        lost=of_run.lost,
        late=attempt.counts.num_late,
        unresolved=sum(rank.unresolved for rank in ranks),
        frames=attempt.num_frames,
        recent_lost=attempt.counts.lost.value(attempt.num_frames),
        recent_late=attempt.counts.late.value(attempt.num_frames),
        recent_unresolved=attempt.counts.unresolved.value(attempt.num_frames),
        is_live=is_live,
        revision=attempt.revision,
        gaps=attempt.signs.gaps(),
        unknown_layers=attempt.layers.distribution.why_unknown(names),
        others=() if before is None else before.others,
    )


def _ranks(attempt: Attempt, before: tuple[RankView, ...]) -> tuple[RankView, ...]:
    """Return the ranks in order: no session leaves its attempt."""
    sessions = attempt.sessions
    if len(before) == len(sessions):
        changed = [
            place
            for place, view in enumerate(before)
            if view.revision != sessions[view.rank].revision
        ]
        ranks = list(before)
        for place in changed:
            ranks[place] = _view_session(sessions[before[place].rank])
        return tuple(ranks) if changed else before
    known = {view.rank: view for view in before}
    return tuple(
        known[rank]
        if rank in known and known[rank].revision == sessions[rank].revision
        else _view_session(sessions[rank])
        for rank in sorted(sessions)
    )


def _view_session(session: RankSession) -> RankView:
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
        pace=session.pace,
        place=session.place,
        stack=session.hang_stack,
        gaps=session.losses.ranges(),
        revision=session.revision,
    )
