"""An attempt: its sessions, what they send, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from gradwatch_server.core.alerting.active import ActiveAlerts
from gradwatch_server.core.alerting.alert import Alert
from gradwatch_server.core.alerting.origin import FirstBad
from gradwatch_server.core.alerting.rules import Rules
from gradwatch_server.core.arrays import numbers
from gradwatch_server.core.attempt.closed_frames import ClosedFrames
from gradwatch_server.core.attempt.manifests import DeclaredManifests
from gradwatch_server.core.attempt.open_frames import OpenFrames
from gradwatch_server.core.attempt.ranks import Ranks
from gradwatch_server.core.entries import BeatProgress
from gradwatch_server.core.frames.assembler import StepRecords
from gradwatch_server.core.frames.distribution import find_place
from gradwatch_server.core.frames.frame import Frame, RankRecord
from gradwatch_server.core.frames.gains import RankGains
from gradwatch_server.core.frames.idle import LayersWithoutGradient
from gradwatch_server.core.frames.layers import Layers
from gradwatch_server.core.frames.step_order import OrderedRecords, Place
from gradwatch_server.core.frames.window import Window
from gradwatch_server.core.liveness import Liveness, SignsOfLife, known_seconds
from gradwatch_server.core.losses import Counts, DeclaredLoss, LostRange
from gradwatch_server.core.session import (
    ATTEMPT_BYTES,
    DeclaredManifest,
    RankSession,
    session_bytes,
)
from gradwatch_wire import Event, Gains, Hello, Manifest, Stats
from gradwatch_wire.health import AlertState, RankState
from gradwatch_wire.names import EventName, LayerOrder, Scalar
from gradwatch_wire.session.replayed import is_replayed

CLOSES = 4
"""Frames that one entry closes at most: a round with many overdue frames would take seconds."""

WIDE_LAYERS = 4_096
"""Layers beyond which an entry closes one frame."""

LEAVE_CLOSES = 64
"""Frames that the end of a rank closes."""

ATTACH_GRACE_NS = 10_000_000_000
"""Frames wait for ranks that never said HELLO only this long after the attempt began."""


RETIRED_PART = 8
"""Part of the memory of layers that stays of an attempt that is retired: names and last frame."""


@dataclass
class Attempt:
    """Knowledge of the aggregator about one attempt, derived from its log entries.

    Args:
        number: Number of the attempt, from 1.
        every: The largest number of steps between two that a living rank wants to measure in full:
            on its multiples all do.

    Attributes:
        revision: Entries that concerned it; readers keep what is unchanged.
    """

    run: str
    number: int
    job: str
    world: int
    replayed: bool
    started_ns: int
    updated_ns: int
    closed: ClosedFrames
    open: OpenFrames
    signs: SignsOfLife
    counts: Counts
    ranks: Ranks = field(default_factory=Ranks)
    retired: bool = False
    every: int = 1

    def __post_init__(self) -> None:
        self.manifests = DeclaredManifests()
        self.revision = 0
        for session in self.sessions.values():
            self.manifests.adopt(session)
            for manifest in session.manifests.values():
                self.layers.share(manifest.layout)

    @classmethod
    def begin(cls, run: str, number: int, hello: Hello, started_ns: int, steps: int) -> Self:
        """Return an attempt before its first record; *steps* is the size of the window."""
        return cls(
            run=run,
            number=number,
            job=hello.job,
            world=hello.world,
            replayed=is_replayed(hello),
            started_ns=started_ns,
            updated_ns=started_ns,
            closed=ClosedFrames.of(run, number, hello, steps),
            open=OpenFrames.of(hello.world),
            signs=SignsOfLife.of(started_ns),
            counts=Counts.of(steps),
        )

    @property
    def lives(self) -> bool:
        """Presence of a rank that has neither ended nor been lost."""
        return bool(self.ranks.alive)

    @property
    def may_return(self) -> bool:
        """Presence of a rank that was lost and did not end."""
        return any(session.state is RankState.LOST for session in self.sessions.values())

    @property
    def waiting(self) -> bool:
        return bool(self.open)

    @property
    def sessions(self) -> Mapping[int, RankSession]:
        return self.ranks.sessions

    @property
    def frames_bytes(self) -> int:
        """Memory of its open steps, manifests, layers and all that is known of these."""
        if self.retired:
            return self.layers.num_bytes // RETIRED_PART
        return self.open.num_bytes + self.manifests.num_bytes + self.layers.num_bytes

    @property
    def sessions_bytes(self) -> int:
        """Memory of its sessions, and of the attempt beside them."""
        sizes = (session_bytes(session.hello) for session in self.sessions.values())
        return ATTEMPT_BYTES + sum(sizes)

    @property
    def num_bytes(self) -> int:
        return self.sessions_bytes + self.frames_bytes

    @property
    def layers(self) -> Layers:
        return self.closed.layers

    @property
    def window(self) -> Window:
        return self.closed.window

    @property
    def num_frames(self) -> int:
        return self.closed.num_frames

    @property
    def last_frame(self) -> Frame | None:
        """The newest frame, without its records."""
        return self.closed.last_frame

    @property
    def first_bad(self) -> FirstBad | None:
        return self.closed.first_bad

    @property
    def active_alerts(self) -> ActiveAlerts:
        return self.closed.active_alerts

    def is_another(self, hello: Hello) -> bool:
        """Tell whether *hello* is of another launch of the run than this attempt."""
        return hello.rank in self.sessions or not self.is_of_launch(hello)

    def is_of_launch(self, hello: Hello) -> bool:
        """Tell whether *hello* is of the launch that this attempt is of, whatever its rank."""
        launch = (hello.job, hello.world, is_replayed(hello))
        return launch == (self.job, self.world, self.replayed)

    def join(self, session: RankSession) -> None:
        self.ranks.join(session)
        self.manifests.adopt(session)
        self.set_state(session, session.state)

    def set_state(self, session: RankSession, state: RankState) -> None:
        """Note that a session ended, is lost, or is back."""
        self.ranks.set_state(session, state)
        if state is RankState.ALIVE:
            self.open.expect(session.hello.rank)

    def leave(
        self, session: RankSession, state: RankState, now_ns: int, rules: Rules
    ) -> Iterator[Alert]:
        """Note that a session ended or is lost, and judge what that decides."""
        self.set_state(session, state)
        if state is RankState.LOST:
            session.lost_ns = session.lost_ns or now_ns
        placed = self.open.release(session.hello.rank, alone=not self.ranks.alive)
        yield from self._take_in(placed, now_ns, rules)
        yield from self.close_frames(now_ns, rules, LEAVE_CLOSES)
        if state is not RankState.ENDED or self.signs.is_troubled:
            yield from self.judge_liveness(now_ns, rules)

    def resume(self, now_ns: int) -> None:
        """Wait anew for all that is missing: the aggregator was away."""
        if not self.lives and not self.may_return:
            return
        self.signs.resume(now_ns)
        self.open.resume(now_ns)
        self.ranks.wait_anew(now_ns)

    def record_sign(self, session: RankSession, now_ns: int) -> None:
        session.heard_ns = now_ns
        if session.is_from_files:
            return
        session.lost_ns, session.is_replaced = 0, False
        signs = self.signs
        if now_ns != signs.heard_ns and now_ns > signs.heard_ns:  # once in a batch
            signs.heard_ns = now_ns

    def record_progress(self, session: RankSession, progress: BeatProgress, now_ns: int) -> None:
        self.record_sign(session, now_ns)
        session.record_progress(progress.last_step, known_seconds(progress.since_s), now_ns)
        self.signs.is_evaluating |= progress.training is False

    def judge_liveness(self, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Evaluate the rules about ranks and time."""
        liveness = self.signs.liveness(self.sessions, now_ns, from_files=self.replayed)
        yield from self.closed.evaluate(liveness, rules)
        watching = {name for name, _ in rules.taking(Liveness)}
        self.signs.is_troubled = any(
            alert.rule in watching and alert.state is not AlertState.RESOLVED
            for alert in self.active_alerts.alerts()
        )

    def pass_time(self, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Close the frames that have waited long enough, and see who has been silent too long."""
        yield from self.close_frames(now_ns, rules)
        if self.ranks.alive:
            yield from self.judge_liveness(now_ns, rules)

    def add_manifest(self, session: RankSession, manifest: Manifest, layers_bytes: int) -> None:
        """Give each layer of the manifest a place; known names keep theirs.

        Args:
            layers_bytes: Bytes that layers may take.
        """
        if self.retired:
            return
        session.place = find_place(manifest, session.hello.rank)
        self.ranks.record_layers(session, is_bare=not manifest.names)
        self.closed.num_bare = len(self.ranks.bare)
        layout = self.layers.declare(manifest, layers_bytes, session.hello.rank)
        if layout is None:
            self._count_unresolved(session)
            return
        ordered = manifest.order == LayerOrder.FORWARD
        idle = LayersWithoutGradient.declare(manifest, self.layers)
        declared = DeclaredManifest(layout, ordered, idle)
        self.manifests.declare(session, manifest.manifest_id, declared)
        self.closed.record_layers()

    def add_event(self, session: RankSession, event: Event) -> None:
        """Count an event by its name, and note what it tells."""
        self.counts.add_event(event.name)
        session.add_event(event)
        if event.name == EventName.PACE:
            living = [
                session for session in self.sessions.values() if session.state is RankState.ALIVE
            ]
            self.every = max((session.every for session in living), default=1)

    def add_stats(
        self, session: RankSession, stats: Stats, entry: int, now_ns: int, rules: Rules
    ) -> Iterable[Alert]:
        """Take in one rank's statistics of one step, which have this number in the log."""
        before, session.last_step, session.beat_step = session.last_step, stats.step, -1
        session.stepped_ns = now_ns
        if session.num_lost:
            session.losses.resume(stats.step)
        if self.retired:
            self.counts.add_late(self.num_frames)
            return ()
        part = session.read(stats, entry)
        if part is None:
            self._count_unresolved(session)
            self.open.pass_over(session.hello.rank, stats)
            return ()
        num_steps = stats.step - before
        last_closed = self.open.frames.last_closed
        place = self.open.order.place_at_once(part.rank, part.number, part.step, last_closed)
        if place is not None:  # nearly always
            return self._take_one(place, part, now_ns, rules, num_steps)
        return self._take_in(self.open.place(part), now_ns, rules, num_steps)

    def _take_in(
        self, placed: OrderedRecords[RankRecord], now_ns: int, rules: Rules, num_steps: int = 1
    ) -> Iterator[Alert]:
        """Put records into the frames of their steps, and look at those that are late."""
        for _, place, part in placed.records:
            yield from self._take_one(place, part, now_ns, rules, num_steps)
        for step, part in placed.rejected:
            yield from self._add_late((self.closed.epoch, step), part, now_ns, rules)

    def _take_one(
        self, place: Place, part: RankRecord, now_ns: int, rules: Rules, num_steps: int
    ) -> Sequence[Alert]:
        alerts: list[Alert] = []
        if self.open.has_gains:
            self.open.come_to(part.rank, place)
        if place > self.signs.place:
            self.signs.advance(place, part, num_steps, now_ns)
            if self.signs.is_troubled:
                alerts += self.judge_liveness(now_ns, rules)
        is_added = self.open.frames.add(
            part.rank, part, step=place, now_ns=now_ns, part=part.number, parts=part.parts
        )
        if not is_added:
            alerts += self._add_late(place, part, now_ns, rules)
        return alerts

    def _add_late(
        self, place: Place, part: RankRecord, now_ns: int, rules: Rules
    ) -> Iterator[Alert]:
        """Count a record that no frame takes, and look whether anything in it is non-finite."""
        self.counts.add_late(self.num_frames)
        if part.nonfinite.any() or not np.isfinite(part.scalars.get(Scalar.LOSS, 0.0)):
            yield from self.closed.add_late(part, place, now_ns, rules)

    def _count_unresolved(self, session: RankSession) -> None:
        session.num_unresolved += 1
        self.counts.unresolved.add(self.num_frames)

    def add_gains(self, session: RankSession, gains: Gains, received_ns: int) -> None:
        rank_gains = RankGains(
            session.hello.rank, gains.blocks, gains.norm_type, numbers(gains.norms)
        )
        if self.retired or not self.open.add_gains(rank_gains, gains.step, received_ns):
            self.counts.add_late(self.num_frames)

    def add_loss(
        self, session: RankSession, first: int, last: int, now_ns: int, rules: Rules
    ) -> Iterator[Alert]:
        after = session.last_step if session.last_step >= 0 else None
        lost = LostRange(first, last, after)
        session.losses.add(lost)
        self.counts.lost.add(self.num_frames, lost.count)
        yield from self.closed.evaluate(DeclaredLoss(session.hello.rank, lost, now_ns), rules)

    def close_frames(self, now_ns: int, rules: Rules, limit: int = CLOSES) -> Iterable[Alert]:
        """Close frames that are due and evaluate them; a limit may leave some open."""
        awaits_others = len(self.ranks.sessions) < self.world
        if awaits_others:
            since_ns = max(self.started_ns, self.signs.resumed_ns)
            awaits_others = now_ns - since_ns < ATTACH_GRACE_NS
        alive = self.ranks.awaited
        if len(self.closed.layers.names) > WIDE_LAYERS:
            limit = 1
        frames = self.open.frames.close(
            alive, now_ns, self.world, awaits_others=awaits_others, limit=limit
        )
        if self.open.has_gains:
            gains = self.open.gains.close(alive, now_ns, self.world, awaits_others=awaits_others)
            return self._add_closed(frames, gains, rules)
        return self._add_closed(frames, (), rules) if frames else ()

    def keep_to(self, limit: int, budget: str, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Close the oldest steps that wait early, until their records take no more than this."""
        if self.open.num_bytes <= limit:
            return
        yield from self._take_in(self.open.release_held(limit), now_ns, rules)
        gains = self.open.close_gains_early(limit, budget)
        yield from self._add_closed(self.open.close_early(limit, budget), gains, rules)

    def _add_closed(
        self,
        frames: Iterable[StepRecords[RankRecord]],
        gains: Iterable[StepRecords[RankGains]],
        rules: Rules,
    ) -> Iterator[Alert]:
        for gathered in frames:
            yield from self.closed.add(gathered, rules)
            self.updated_ns = gathered.received_ns
            last_frame = self.closed.last_frame
            if last_frame is not None and (last_frame.coverage < 1.0 or self.ranks.behind):
                self.ranks.count_behind(last_frame)
        for step_gains in gains:
            yield from self.closed.add_gains(step_gains, rules)

    def retire(self, now_ns: int, rules: Rules) -> Iterator[Alert]:
        """Close open frames, and free what only an attempt that goes on needs."""
        for rank in self.sessions:
            yield from self._take_in(self.open.release(rank, alone=False), now_ns, rules)
        frames = self.open.frames.close((), now_ns, self.world)
        gains = self.open.gains.close((), now_ns, self.world)
        yield from self._add_closed(frames, gains, rules)
        self.retired = True
        self.revision += 1
        self.closed.retire()
        self.manifests.clear(self.sessions.values())

    def resize_window(self, steps: int) -> None:
        """Let the window hold another number of frames from now on."""
        self.closed.resize_window(steps)
        self.counts.resize_window(steps)
